"""Sweeps from Python, by the algebra of sweep files: a setting is a dictionary of dotted keys, a list of them a sum.

    settings = product(grid({"optimizer.learning_rate": [1e-3, 2e-3]}), [{}, {"model.head_output": "none"}])
    configs = runs(load_run("tiny"), settings, seeds=[0, 1, 2])

are twelve runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from wmresearch.config import RunConfig, parse_run
from wmresearch.config.draft import Draft, Origin
from wmresearch.config.expansion import draws
from wmresearch.config.variation import RandomDraws

Setting: TypeAlias = dict[str, Any]
"""Dotted key → value."""


def grid(keys: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """Every combination of the keys' values, those of the last key fastest."""
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*keys.values())]


def zipped(keys: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """The keys' values side by side.

    Raises:
        ValueError: they are not equally many.
    """
    return [dict(zip(keys, values, strict=True)) for values in zip(*keys.values(), strict=True)]


def drawn(keys: Mapping[str, Mapping[str, Any]], count: int, seed: int = 0) -> list[Setting]:
    """`count` settings, each key drawn by `{"log_uniform": [1e-4, 1e-2]}`, `uniform`, `integers` or `choice`."""
    return list(draws(RandomDraws.model_validate({"keys": keys, "count": count, "seed": seed})))


def product(*parts: Iterable[Setting]) -> list[Setting]:
    """Every combination of the settings of each part; where two set one key, the later part does."""
    combined = itertools.product(*parts)
    return [{key: value for setting in settings for key, value in setting.items()} for settings in combined]


def changed(base: RunConfig, setting: Setting) -> RunConfig:
    """A run config with other values.

    Raises:
        ConfigError: with everything that is wrong with them.
    """
    draft = Draft(base.model_dump(mode="json"), "setting")
    for key, value in setting.items():
        draft.set(key, value, Origin("setting"))
    return parse_run(draft.data, "setting")


def runs(base: RunConfig, settings: Iterable[Setting], seeds: Sequence[int] = (0,)) -> list[RunConfig]:
    """All settings × seeds, in this order.

    Raises:
        ConfigError: with everything that is wrong with the first setting that is not valid.
    """
    configs = (changed(base, setting) for setting in settings)
    return [config.model_copy(update={"seed": seed}) for config in configs for seed in seeds]


def counterpart(setting: Setting, candidates: Iterable[Setting]) -> Setting | None:
    """The largest of the candidates that a setting contains: the baseline's, where an arm varies more than it."""
    contained = [other for other in candidates if other.items() <= setting.items()]
    return max(contained, key=len, default=None)

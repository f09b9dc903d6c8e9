"""Reads sweep files, with overrides on top, into runs; or says everything that is wrong with them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wmresearch.config.custom_file import AskCustom
from wmresearch.config.draft import (
    COMMAND_LINE,
    Draft,
    Origin,
    find_file,
    missing_file,
    parse_overrides,
    read_draft,
)
from wmresearch.config.expansion import Block, Factor, Point, Value, product, read_arms, sweep_factors
from wmresearch.config.loading import examined_run, not_asked
from wmresearch.config.presets import find_config
from wmresearch.config.problems import ConfigError, Problem, nearest
from wmresearch.config.run import RunConfig
from wmresearch.config.sweep import SweepConfig
from wmresearch.config.sweep_conflicts import conflicts
from wmresearch.config.validation import examine, shown
from wmresearch.config.variation import MAX_RUNS, MatchConfig

_HOLDERS = ("grid", "zip", "random.keys", "tune.keys")
"""Mappings of a sweep whose keys hold dots."""
_ARM_HOLDERS = ("grid", "zip", "random.keys", "tune")
_WHOLE = ("arms", "grid", "zip", "list", "random", "tune")
"""What is replaced where it is given whole: there is nothing to merge by, its keys hold dots."""


@dataclass(frozen=True)
class ArmRun:
    """One of the first runs of a sweep, before it has an id: arm, settings, seed, and the whole config."""

    arm: str
    settings: dict[str, Any]
    """What the sweep and the arm vary."""
    seed: int
    config: RunConfig
    tuned: dict[str, Any] = field(default_factory=dict)
    """The values that this run tries, where the sweep tunes."""
    match: MatchConfig = field(default_factory=lambda: MatchConfig(budget="none"))
    own: frozenset[str] = frozenset()
    """Keys that the arm, the sweep or tuning sets, which matching leaves alone."""


def load_sweep(
    path_or_name: str | Path, overrides: Sequence[str] = (), ask_custom: AskCustom = not_asked
) -> tuple[SweepConfig, list[ArmRun]]:
    """A sweep file and its runs: arms × settings × seeds, in that order. `ask_custom` as in `load_run`.

    Where the sweep tunes, these are the runs that tuning begins with: arms × settings × tuned values × tuning seeds.

    An override whose first key is one of the sweep's own (`seeds=[0,1]`, `grid.optimizer.learning_rate=[1e-3]`)
    changes the sweep; any other changes the base config.

    Raises:
        ConfigError: with every problem in the sweep file, the base config, every arm and the overrides.
    """
    draft = read_draft(find_config(path_or_name, sweeps=True))
    if "model" in draft.data and "arms" not in draft.data:
        raise ConfigError([Problem(draft.source, "", "", "a sweep, and this is a run config", "try `wm train`")])
    problems: list[Problem] = []
    base_overrides = _apply_to_sweep(draft, parse_overrides(overrides, problems), problems)
    examined = examine(SweepConfig, draft.data, draft.place)
    problems += examined.problems
    sweep = examined.config
    base: Draft | None = None
    if sweep is not None and examined.is_sound("base"):
        try:
            base = _base_draft(draft, sweep.base)
        except ConfigError as error:
            problems += error.problems
    runs: list[ArmRun] = []
    if sweep is not None:
        factors: tuple[Factor, ...] = ()
        if sweep.first_runs <= MAX_RUNS:
            factors = sweep_factors(examined, draft, problems)
        sound = {arm: changes for arm, changes in sweep.arms.items() if examined.is_sound("arms", arm)}
        arms = read_arms(sound, draft, problems)
        problems += conflicts(sweep, factors, arms, draft, base_overrides)
        if base is not None:
            for key, value in base_overrides.items():
                base.set(key, value, Origin(COMMAND_LINE))
            keys = sweep.tune.keys if sweep.tune and examined.is_sound("tune") else {}
            points = {arm: _tune_points(arm, block, keys, draft, problems) for arm, block in arms.items()}
            sizes = [_size((*factors, *block.factors)) * len(points[arm]) for arm, block in arms.items()]
            if (wanted := sum(sizes) * len(sweep.first_seeds)) > MAX_RUNS >= sweep.first_runs:
                expected = f"at most {MAX_RUNS:,} runs in a sweep, and with what arms extend there are {wanted:,}"
                problems.append(Problem(*draft.place("arms"), "", expected))
            for arm, block in arms.items() if wanted <= MAX_RUNS >= sweep.first_runs else ():
                if block.sound:
                    runs += _runs(sweep, draft, base, arm, block, factors, points[arm], ask_custom, problems)
    if problems or sweep is None:
        raise ConfigError(list(dict.fromkeys(problems)))
    return sweep, runs


def _apply_to_sweep(draft: Draft, overrides: list[tuple[str, Any]], problems: list[Problem]) -> dict[str, Any]:
    """Applies the overrides that are the sweep's own; the others are returned."""
    rest: dict[str, Any] = {}
    for key, value in overrides:
        first = key.partition(".")[0]
        if first in SweepConfig.model_fields:
            target, inner = _inside(draft.data, key)
            if target is draft.data and key not in _WHOLE:
                draft.set(key, value, Origin(COMMAND_LINE))
            else:
                target[inner] = value
                draft.set_by[key] = Origin(COMMAND_LINE)
        elif first not in RunConfig.model_fields:
            names = [*SweepConfig.model_fields, *RunConfig.model_fields]
            problems.append(
                Problem(COMMAND_LINE, key, shown(value), "a key of the sweep or of its base", nearest(first, names))
            )
        elif first == "seed":
            problems.append(Problem(COMMAND_LINE, key, shown(value), "seeds=[…]: a sweep lists its seeds"))
        else:
            rest[key] = value
    return rest


def _inside(data: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """The mapping that an override's key lies in, and its key there: keys of grid, arms and the like hold dots."""

    def into(target: dict[str, Any], word: str) -> dict[str, Any]:
        if not isinstance(target.get(word), dict):
            target[word] = {}
        inner: dict[str, Any] = target[word]
        return inner

    holders = _HOLDERS
    if key.startswith("arms."):
        data, key = into(data, "arms"), key.removeprefix("arms.")
        arm = max((name for name in data if key.startswith(name + ".")), key=len, default="")
        if not arm or not isinstance(data[arm], dict):
            return data, key
        data, key, holders = data[arm], key[len(arm) + 1 :], _ARM_HOLDERS
    holder = next((name for name in holders if key == name or key.startswith(name + ".")), None)
    if holder is not None and (holder != key or "." in key):
        *words, last = holder.split(".")
        for word in words:
            data = into(data, word)
        return (data, last) if holder == key else (into(data, last), key[len(holder) + 1 :])
    return data, key


def _base_draft(draft: Draft, text: str) -> Draft:
    path, _ = find_file(draft, "base", text)
    if not Path(path).is_file():
        raise ConfigError([missing_file(draft, "base", text, "the path of a run config, from this file")])
    return read_draft(Path(path))


def _size(factors: Sequence[Factor]) -> int:
    return math.prod(len(factor.points) for factor in factors)


def _tune_points(
    arm: str, block: Block, keys: Mapping[str, list[Any]], draft: Draft, problems: list[Problem]
) -> list[Point]:
    """The values that an arm's tuning begins with; one empty point where nothing is tuned."""
    own = block.options.tune or {}
    for key, values in own.items():
        place = draft.place(f"arms.{arm}.tune.{key}")
        if key not in keys:
            problems.append(Problem(*place, shown(values), "a key that the sweep tunes", nearest(key, keys)))
        elif len(values) != len(keys[key]):
            expected = f"{len(keys[key])} values, as many as the sweep's: tuning costs the same for every arm"
            problems.append(Problem(*place, shown(values), expected))
        elif any(value in values[:index] for index, value in enumerate(values)):
            problems.append(Problem(*place, shown(values), "each value once"))
    factors = []
    for key, values in keys.items():
        path = f"arms.{arm}.tune.{key}" if key in own else f"tune.keys.{key}"
        points = [(Value(key, value, path, f".{index}"),) for index, value in enumerate(own.get(key, values))]
        factors.append(Factor("tune", tuple(points)))
    return list(product(factors))


def _runs(
    sweep: SweepConfig,
    draft: Draft,
    base: Draft,
    arm: str,
    block: Block,
    factors: tuple[Factor, ...],
    tuned: list[Point],
    ask_custom: AskCustom,
    problems: list[Problem],
) -> Iterator[ArmRun]:
    """The runs of an arm, as far as they can be made; what is wrong with them goes to `problems`."""
    match = block.options.match or sweep.match
    for shared, own, tried in itertools.product(product(factors), product(block.factors), tuned):
        changed = base.copy()
        for value in (*block.fixed, *own, *shared, *tried):
            value.set_in(changed, draft)
        changed.data["seed"] = sweep.first_seeds[0]
        config, found = examined_run(changed, ask_custom)
        if config is not None and sweep.reach and config.training.evaluate_every is None:
            expected = "training.evaluate_every in the base: the loss has to be known before the last step"
            found = [*found, Problem(*draft.place("reach"), "true", expected)]
        problems.extend(found)
        if config is None or found:
            continue
        settings, values = ({value.key: value.value for value in point} for point in (shared + own, tried))
        keys = frozenset(value.key for value in (*block.fixed, *own, *shared, *tried))
        for seed in sweep.first_seeds:
            yield ArmRun(arm, settings, seed, config.model_copy(update={"seed": seed}), values, match, keys)

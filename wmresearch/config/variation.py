"""The algebra of sweeps, as a file says it: which settings something is run at.

`grid`, `zip`, `list` and `random` beside one another multiply; the entries of a `list` add up, and each may vary by
itself. Keys are dotted paths in the run config.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from wmresearch.config.base import AllowList, Check, Config, Words

MAX_RUNS = 100_000

Values: TypeAlias = Annotated[list[Any], Field(min_length=1)]
Choices: TypeAlias = Annotated[list[Any], Field(min_length=2)]
Entries: TypeAlias = Annotated[list[dict[str, Any]], Field(min_length=1)]
Bounds: TypeAlias = Annotated[tuple[float, float], AllowList]


class Distribution(Config):
    """How one key is drawn: one of these."""

    uniform: Bounds | None = None
    """Between two numbers."""
    log_uniform: Bounds | None = None
    """Between two numbers, the logarithm uniformly."""
    integers: Annotated[tuple[int, int], AllowList] | None = None
    """From one whole number to another, both included."""
    choice: Values | None = None
    """One of these values."""

    def checks(self) -> Iterator[Check]:
        names = list(type(self).model_fields)
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            yield Check(given[1] if given else "choice", f"one of {', '.join(names)}", tuple(names))
        for name in ("uniform", "log_uniform", "integers"):
            bounds = getattr(self, name)
            if bounds is not None and bounds[0] >= bounds[1]:
                yield Check(name, "a lower and a higher number")
        if self.log_uniform is not None and self.log_uniform[0] <= 0:
            yield Check("log_uniform.0", "a number above 0")


class RandomDraws(Config):
    """Settings that are drawn: the same for the same seed, and with a larger count the same and more."""

    seed: int = Field(default=0, ge=0)
    count: int = Field(ge=1, le=MAX_RUNS)
    keys: dict[str, Distribution] = Field(min_length=1)
    """Dotted key → how it is drawn."""


class Variation(Config):
    """Which settings something is run at: every combination of what is given."""

    grid: dict[str, Values] | None = Field(default=None, min_length=1)
    """Dotted key → its values; every combination."""
    zip: dict[str, Values] | None = Field(default=None, min_length=1)
    """Dotted key → its values; lists of one length, varied together."""
    list: Entries | None = None
    """Settings one after another, each what it changes; an entry may itself have grid, zip, list and random."""
    random: RandomDraws | None = None
    """Settings that are drawn."""

    def checks(self) -> Iterator[Check]:
        for name in ("grid", "zip"):
            for key, values in (getattr(self, name) or {}).items():
                for index, value in enumerate(values):
                    if name == "grid" and value in values[:index]:
                        yield Check(f"{name}.{key}.{index}", "each value once")
        lengths = {key: len(values) for key, values in (self.zip or {}).items()}
        for key, length in lengths.items():
            first = next(iter(lengths))
            if length != lengths[first]:
                yield Check(f"zip.{key}", f"{lengths[first]} values, as many as {first} has", (f"zip.{first}",))


class MatchConfig(Config):
    """What an arm is to have in common with the baseline, to half a percent, and what is changed until it has."""

    budget: Literal["parameters", "flops", "none"]
    """`parameters` of the model at the end; training `flops` of the whole run."""
    by: Annotated[list[Literal["model.d_mlp", "model.head_output.rank", "training.steps"]], Field(min_length=1)] = [
        "model.d_mlp"
    ]
    """Keys in the order in which they are tried."""


Match: TypeAlias = Annotated[
    MatchConfig,
    Words("parameters, flops or none, or a mapping with budget and by"),
    BeforeValidator(lambda value: {"budget": value} if isinstance(value, str) else value),
]


class ArmOptions(Variation):
    """What an arm may say beside the dotted keys that it changes."""

    extends: str | None = None
    """Another arm: this one is that one, with its own keys on top."""
    match: Match | None = None
    """In place of the sweep's."""
    tune: dict[str, Choices] | None = Field(default=None, min_length=1)
    """The values that tuning starts with, in place of the sweep's: as many for each key."""


def count(block: Mapping[str, Any]) -> int:
    """How many settings plain data stands for, without making them; what is malformed counts as one."""
    grid, zipped, listed, drawn = (block.get(name) for name in ("grid", "zip", "list", "random"))
    found = 1
    if isinstance(grid, Mapping):
        found *= math.prod(len(values) for values in grid.values() if isinstance(values, list))
    if isinstance(zipped, Mapping):
        found *= max((len(values) for values in zipped.values() if isinstance(values, list)), default=1)
    if isinstance(listed, list):
        found *= sum(count(entry) for entry in listed if isinstance(entry, Mapping))
    draws = drawn.get("count") if isinstance(drawn, Mapping) else None
    return found * (draws if isinstance(draws, int) else 1)

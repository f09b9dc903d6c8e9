"""A sweep: arms × grid × seeds over a base config."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from wmresearch.config.base import Check, Config, Words
from wmresearch.config.problems import nearest

Seed = Annotated[int, Field(ge=0, lt=2**32)]

MAX_RUNS = 100_000


class SweepConfig(Config):
    """What a sweep file says. Keys of `arms` values and of `grid` are dotted paths in the run config."""

    name: Annotated[str, Words("letters, digits, '.', '_' and '-', with a letter or digit first")] = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100
    )
    """Also the name of the folder under runs/ and of the W&B group."""
    base: str = Field(min_length=1)
    """Path of the run config that arms change, from the sweep file's folder."""
    baseline: str
    """The arm that the others are compared with."""
    arms: dict[str, dict[str, Any]] = Field(min_length=1)
    """Name → what it changes in the base; `{}` is the base itself."""
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] | None = Field(default=None, min_length=1)
    """Dotted key → its values; every arm is run at every combination."""
    seeds: list[Seed] = Field(min_length=1)

    def checks(self) -> Iterator[Check]:
        if self.baseline not in self.arms:
            yield Check(
                "baseline", f"one of the arms: {', '.join(self.arms)}", ("arms",), nearest(self.baseline, self.arms)
            )
        for index, seed in enumerate(self.seeds):
            first = self.seeds.index(seed)
            if first < index:
                yield Check(f"seeds.{index}", "each seed once", (f"seeds.{first}",))
        for key, values in (self.grid or {}).items():
            for index, value in enumerate(values):
                if value in values[:index]:
                    yield Check(f"grid.{key}.{index}", "each value once")
        runs = len(self.arms) * math.prod(len(values) for values in (self.grid or {}).values()) * len(self.seeds)
        if runs > MAX_RUNS:
            yield Check(
                "grid", f"at most {MAX_RUNS:,} runs in a sweep, and arms × grid × seeds make {runs:,}", ("seeds",)
            )

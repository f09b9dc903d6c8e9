"""A sweep: arms × grid × seeds over a base config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from wmresearch.config.base import Check, Config
from wmresearch.config.problems import nearest

Seed = Annotated[int, Field(ge=0, lt=2**32)]


class SweepConfig(Config):
    """What a sweep file says. Keys of `arms` values and of `grid` are dotted paths in the run config."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Also the name of the folder under runs/ and of the W&B group."""
    base: str
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
            yield Check("baseline", f"one of the arms: {', '.join(self.arms)}", ("arms",), nearest(self.baseline, self.arms))
        for index, seed in enumerate(self.seeds):
            if seed in self.seeds[:index]:
                yield Check(f"seeds.{index}", "each seed once")
        for key, values in (self.grid or {}).items():
            for index, value in enumerate(values):
                if value in values[:index]:
                    yield Check(f"grid.{key}.{index}", "each value once")

"""A sweep: arms × settings × seeds over a base config, and how arms are matched and tuned."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, TypeAlias

from pydantic import Discriminator, Field, Tag

from wmresearch.config.base import Check, Config, Words
from wmresearch.config.problems import nearest
from wmresearch.config.variation import MAX_RUNS, Choices, Match, MatchConfig, Variation, count

Seed = Annotated[int, Field(ge=0, lt=2**32)]
SeedList: TypeAlias = Annotated[list[Seed], Field(min_length=1)]


class SeedsByRole(Config):
    """Seeds of a sweep that tunes."""

    tune: SeedList
    """Of the runs that choose the tuned values."""
    report: SeedList
    """Of the runs that tables show."""

    def checks(self) -> Iterator[Check]:
        for index, seed in enumerate(self.report):
            if seed in self.tune:
                yield Check(
                    f"report.{index}", "a seed that is not among those that tune: reported runs are fresh", ("tune",)
                )


Seeds = Annotated[
    Annotated[SeedList, Tag("list")] | Annotated[SeedsByRole, Tag("by role")],
    Discriminator(lambda value: "by role" if isinstance(value, dict | SeedsByRole) else "list"),
    Words("a list of seeds, or with tune a mapping with tune and report"),
]


class TuneConfig(Config):
    """Keys whose values are chosen for each arm, by the mean validation loss over the tuning seeds."""

    keys: dict[str, Choices] = Field(min_length=1)
    """Dotted key → the values to begin with; every combination is tried."""
    extend: int = Field(default=2, ge=0)
    """Most values that a key's list is continued by where the best is its lowest or highest number."""

    def checks(self) -> Iterator[Check]:
        for key, values in self.keys.items():
            for index, value in enumerate(values):
                if value in values[:index]:
                    yield Check(f"keys.{key}.{index}", "each value once")


class SweepConfig(Variation):
    """What a sweep file says. Keys of `arms` values and of all that varies are dotted paths in the run config."""

    name: Annotated[str, Words("letters, digits, '.', '_' and '-', with a letter or digit first")] = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100
    )
    """Also the name of the folder under runs/ and of the W&B group."""
    base: str = Field(min_length=1)
    """Path of the run config that arms change, from the sweep file's folder."""
    baseline: str
    """The arm that the others are compared with."""
    arms: dict[str, dict[str, Any]] = Field(min_length=1)
    """Name → what it changes in the base; `{}` is the base itself. Also extends, match, tune, and its own settings."""
    match: Match = MatchConfig(budget="none")
    """What every arm is made to have in common with the baseline."""
    tune: TuneConfig | None = None
    """What is chosen for each arm before it is reported."""
    reach: bool = False
    """Whether tables show when each arm reaches the baseline's final validation loss."""
    margin: float | None = Field(default=None, gt=0)
    """Nats per token, stated before the runs: tables test whether an arm's loss is within so much of the baseline's."""
    seeds: Seeds

    @property
    def first_seeds(self) -> SeedList:
        """Seeds of the runs that a sweep begins with."""
        return self.seeds.tune if isinstance(self.seeds, SeedsByRole) else self.seeds

    @property
    def report_seeds(self) -> SeedList:
        return self.seeds.report if isinstance(self.seeds, SeedsByRole) else self.seeds

    @property
    def first_runs(self) -> int:
        """How many runs a sweep begins with, as far as its arms do not extend others."""
        settings = count(self.model_dump(include=set(Variation.model_fields))) * sum(map(count, self.arms.values()))
        points = math.prod(map(len, self.tune.keys.values())) if self.tune else 1
        return settings * points * len(self.first_seeds)

    def checks(self) -> Iterator[Check]:
        yield from super().checks()
        if self.baseline not in self.arms:
            yield Check(
                "baseline", f"one of the arms: {', '.join(self.arms)}", ("arms",), nearest(self.baseline, self.arms)
            )
        by_role = isinstance(self.seeds, SeedsByRole)
        if self.tune is not None and not by_role:
            yield Check("seeds", "{tune: […], report: […]}: tuning has seeds of its own", ("tune",))
        if self.tune is None and by_role:
            yield Check("seeds", "a list, or `tune` beside it: seeds by role are for tuning", ("tune",))
        lists = {"tune": self.first_seeds, "report": self.report_seeds} if by_role else {"": self.report_seeds}
        for role, seeds in lists.items():
            where = ".".join(filter(None, ("seeds", role)))
            for index, seed in enumerate(seeds):
                if (first := seeds.index(seed)) < index:
                    yield Check(f"{where}.{index}", "each seed once", (f"{where}.{first}",))
        if (runs := self.first_runs) > MAX_RUNS:
            what = next((name for name in Variation.model_fields if getattr(self, name) is not None), "arms")
            said = f"at most {MAX_RUNS:,} runs in a sweep, and arms × settings × seeds make {runs:,}"
            yield Check(what, said, ("seeds",))

"""From a sweep file to its runs, each with its id: pure functions, but for the corpus that an id depends on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from wmresearch.config import ConfigError, Problem, RunConfig, SweepConfig, load_sweep, run_id
from wmresearch.data import corpus_digest
from wmresearch.training.custom_kind import ask_custom


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep."""

    run_id: str
    arm: str
    settings: dict[str, Any]
    seed: int
    config: RunConfig
    role: Literal["tune", "report"] = "report"


@dataclass(frozen=True)
class Plan:
    """A sweep and all of its runs, in the order arms × grid × seeds."""

    sweep: SweepConfig
    runs: tuple[PlannedRun, ...]


def make_plan(path: str | Path, overrides: Sequence[str] = (), report: Callable[[str], None] = lambda _: None) -> Plan:
    """The plan of a sweep file. Prepares the corpora, since a run's id holds the corpus' digest.

    Raises:
        ConfigError: the file, its base, an arm or an override is wrong, or two arms are the same run.
    """
    sweep, arm_runs = load_sweep(path, overrides, ask_custom)
    digests: dict[str, str] = {}
    runs: list[PlannedRun] = []
    for item in arm_runs:
        key = item.config.data.model_dump_json(include={"corpus", "split"})
        if key not in digests:
            digests[key] = corpus_digest(item.config.data, report)
        identity = run_id(item.config, digests[key])
        runs.append(PlannedRun(identity, item.arm, item.settings, item.seed, item.config))
    problems = list(_doubles(str(path), runs))
    if problems:
        raise ConfigError(problems)
    return Plan(sweep, tuple(runs))


def _doubles(source: str, runs: Sequence[PlannedRun]) -> list[Problem]:
    """Arms that would be one and the same run: a table would compare a thing with itself."""
    first: dict[str, PlannedRun] = {}
    problems: dict[tuple[str, str], Problem] = {}
    for run in runs:
        other = first.setdefault(run.run_id, run)
        if other is run:
            continue
        if other.arm != run.arm:
            text = f"an arm that differs from '{other.arm}' in what changes the result"
            problems[run.arm, other.arm] = Problem(source, f"arms.{run.arm}", "", text)
        else:
            text = "settings that differ in what changes the result"
            problems[run.arm, "grid"] = Problem(source, "grid", f"{other.settings} and {run.settings}", text)
    return list(problems.values())

"""The runs of a sweep that its tables show, by row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from wmresearch.config.problems import Problem
from wmresearch.reports.records import (
    Plan,
    PlannedRun,
    Record,
    ReportError,
    TunedArm,
    read_plan,
    read_record,
    row_key,
    setting_key,
)
from wmresearch.sweeps.algebra import counterpart

Key: TypeAlias = tuple[str, str]
"""Arm, and setting as text."""


@dataclass(frozen=True)
class SweepRuns:
    """The runs of a sweep that are reported, in the plan's order."""

    directory: Path
    plan: Plan
    groups: dict[Key, list[Record]]
    """(arm, setting) → its runs, one for each seed; where the sweep tunes, at the values that the arm chose."""
    at_baseline: dict[Key, list[Record]]
    """(arm, setting without tuned keys) → its runs at the values that the baseline chose."""

    @property
    def tuned_keys(self) -> tuple[str, ...]:
        return tuple(self.plan.tuned[0].tried[0].values) if self.plan.tuned and self.plan.tuned[0].tried else ()

    def untuned(self, settings: dict[str, Any]) -> dict[str, Any]:
        """A setting without the tuned keys."""
        return {key: value for key, value in settings.items() if key not in self.tuned_keys}

    def baseline_of(self, settings: dict[str, Any]) -> list[Record]:
        """The baseline's runs that a row at a setting is compared with."""
        groups = [group for (arm, _), group in self.groups.items() if arm == self.plan.baseline]
        at = [self.untuned(group[0].planned.settings) for group in groups]
        found = counterpart(self.untuned(settings), at)
        return next((group for group, other in zip(groups, at, strict=True) if other == found), [])

    def tuning_of(self, settings: dict[str, Any], arm: str) -> TunedArm | None:
        at = self.untuned(settings)
        return next((tuned for tuned in self.plan.tuned if (tuned.arm, tuned.settings) == (arm, at)), None)

    @property
    def records(self) -> list[Record]:
        """All that are reported."""
        return [record for group in self.groups.values() for record in group]

    @property
    def all_settings(self) -> list[dict[str, Any]]:
        """Those of all rows, without tuned keys."""
        settings = [self.untuned(group[0].planned.settings) for group in self.groups.values()]
        return settings + [tuned.settings for tuned in self.plan.tuned]

    @property
    def varied(self) -> tuple[str, ...]:
        """Keys of the settings that take more than one value, without those that are tuned."""
        return varied_keys(self.all_settings)


def varied_keys(settings: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Keys that take more than one value in them, or stand in some only."""
    keys = dict.fromkeys(key for setting in settings for key in setting)
    return tuple(key for key in keys if len({_text(setting, key) for setting in settings}) > 1)


def read_runs(directory: Path) -> SweepRuns:
    """The runs of the sweep in a directory.

    Raises:
        ReportError: there is no plan that can be used, or the runs read different corpora.
    """
    plan = read_plan(directory)
    records = [read_record(directory, run) for run in plan.runs if run.role == "report"]
    refuse_mixed_corpora([(directory, record) for record in records])
    chosen = set(_keys_at(plan.tuned, "chosen"))
    others = _keys_at(plan.tuned, "at_baseline")
    groups: dict[Key, list[Record]] = {}
    at_baseline: dict[Key, list[Record]] = {}
    for record in records:
        key = row_key(record.planned)
        if not plan.tuned or key in chosen:
            groups.setdefault(key, []).append(record)
        if key in others:
            at_baseline.setdefault(others[key], []).append(record)
    return SweepRuns(directory, plan, groups, at_baseline)


def tuning_states(directory: Path, plan: Plan, tuned: TunedArm) -> list[str]:
    """The states of the runs that tune an arm at a setting."""
    tried = {setting_key(tuned.settings | one.values) for one in tuned.tried}

    def tunes(run: PlannedRun) -> bool:
        return run.role == "tune" and run.arm == tuned.arm and setting_key(run.settings) in tried

    return [read_record(directory, run).state for run in plan.runs if tunes(run)]


def _keys_at(tuned: Iterable[TunedArm], which: str) -> dict[Key, Key]:
    """(arm, setting with certain values) → (arm, setting without)."""
    at = [(one, getattr(one, which)) for one in tuned]
    return {
        (one.arm, setting_key(one.settings | values)): (one.arm, setting_key(one.settings))
        for one, values in at
        if values is not None
    }


def _text(setting: dict[str, Any], key: str) -> str | None:
    return json.dumps(setting[key], sort_keys=True) if key in setting else None


def refuse_mixed_corpora(records: Sequence[tuple[Path, Record]]) -> None:
    """`records`: each with its sweep's directory.

    Raises:
        ReportError: they read different corpora.
    """
    runs: dict[str, list[str]] = {}
    for _, record in records:
        for digest in record.digests:
            runs.setdefault(digest, []).append(record.planned.run_id)
    if len(runs) < 2:
        return
    found = "; ".join(
        f"{digest[:12]} in {len(ids)} runs ({', '.join(ids[:3])}{', …' * (len(ids) > 3)})"
        for digest, ids in runs.items()
    )
    sweeps = list(dict.fromkeys(str(directory) for directory, _ in records))
    do = (
        "move the folders of one corpus away, then start the sweep again"
        if len(sweeps) == 1
        else "make a table of each"
    )
    hint = f"losses on different texts cannot be compared: {do}"
    expected = "one corpus for all runs of a table"
    raise ReportError([Problem(" and ".join(sweeps), "corpus_digest", found, expected, hint)])

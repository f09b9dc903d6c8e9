"""The table of a sweep: one row for each arm at each setting of the grid, with uncertainty, from the run directories.

Only finished runs are averaged. What cannot be averaged honestly is refused (different corpora) or flagged in its row.
"""

from __future__ import annotations

import statistics as exact
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wmresearch.config.problems import Problem
from wmresearch.reports.manifest import environment, table_manifest
from wmresearch.reports.records import Plan, Record, ReportError, read_plan, read_record, row_key, unplanned
from wmresearch.reports.rendering import FORMATS, render
from wmresearch.reports.rows import Delta, Row, Table, Tasks
from wmresearch.reports.statistics import Estimate, holm, mean_interval, paired_difference

__all__ = ["FORMATS", "ReportError", "Row", "Table", "build_table", "render"]


def build_table(directory: Path) -> Table:
    """The table of the sweep in a directory, from its plan and whatever its runs have left there so far.

    Raises:
        ReportError: there is no plan that can be used, or the runs read different corpora.
    """
    runs = read_runs(Path(directory))
    plan = runs.plan
    rows = [
        _row(group, None if arm == plan.baseline else runs.baselines.get(setting, []))
        for (arm, setting), group in runs.groups.items()
    ]
    rows = _flag_shared_runs(_corrected(rows), runs.groups)
    family = sum(row.delta is not None for row in rows)
    records = [record for group in runs.groups.values() for record in group]
    manifest = table_manifest(records, unplanned(runs.directory, plan), family)
    return Table(plan.name, plan.baseline, tuple(rows), manifest, runs.varied)


@dataclass(frozen=True)
class SweepRuns:
    """The runs of a sweep that are reported, in the plan's order."""

    directory: Path
    plan: Plan
    groups: dict[tuple[str, str], list[Record]]
    """(arm, setting of the grid) → its runs, one for each seed."""

    @property
    def baselines(self) -> dict[str, list[Record]]:
        """Setting of the grid → the baseline's runs."""
        return {setting: group for (arm, setting), group in self.groups.items() if arm == self.plan.baseline}

    @property
    def varied(self) -> tuple[str, ...]:
        """Keys of the grid that take more than one value."""
        return tuple(key for key, values in (self.plan.grid or {}).items() if len(values) > 1)


def read_runs(directory: Path) -> SweepRuns:
    """The runs of the sweep in a directory.

    Raises:
        ReportError: there is no plan that can be used, or the runs read different corpora.
    """
    plan = read_plan(directory)
    records = [read_record(directory, run) for run in plan.runs if run.role == "report"]
    _refuse_mixed_corpora(directory, records)
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault(row_key(record.planned), []).append(record)
    return SweepRuns(directory, plan, groups)


def _row(group: Sequence[Record], baseline: Sequence[Record] | None) -> Row:
    """The row of the runs of one arm at one setting. `baseline`: the baseline's runs there; None: these are they."""
    finished = [record for record in group if record.finished]
    paired_with = [record for record in baseline or () if record.finished]
    states = [record.state for record in group]
    delta = None if baseline is None else _delta(finished, paired_with, tested="diverged" not in states)
    flops = _size(group, "flops_per_token")
    baseline_flops = flops if baseline is None else _size(baseline, "flops_per_token")
    speeds = _values(finished, "tokens_per_second")
    return Row(
        arm=group[0].planned.arm,
        settings=group[0].planned.settings,
        n=len(finished),
        planned=len(group),
        finished=len(finished),
        diverged=states.count("diverged"),
        failed=states.count("failed"),
        flags=(*_flags(group, baseline or ()), *_delta_flags(delta, len(finished))),
        learning_rate=_agreed(group, "learning_rate"),
        validation_loss=_average(finished, "validation_loss"),
        test_loss=_average(finished, "test_loss"),
        bits_per_byte=_average(finished, "bits_per_byte"),
        delta=delta,
        parameters=_whole(_size(group, "parameters")),
        head_output_parameters=_whole(_size(group, "head_output_parameters")),
        head_output_nonzeros=_whole(_size(group, "head_output_nonzeros")),
        total_rank=_agreed(group, "total_rank"),
        flops_per_token=flops,
        training_flops=_size(group, "training_flops"),
        saves_compute=None if flops is None or baseline_flops is None else flops < baseline_flops,
        tokens_per_second=exact.median(speeds) if speeds else None,
        tasks=_tasks(finished),
    )


def _tasks(finished: Sequence[Record]) -> Tasks | None:
    keys = ("recall_accuracy", "induction_accuracy", "induction_gain")
    if not any(_values(finished, key) for key in keys):
        return None
    return Tasks(*(_average(finished, key) for key in keys))


def _values(records: Sequence[Record], key: str) -> list[Any]:
    """What the runs' summaries say under a key, where they say anything."""
    values = [getattr(record.summary, key) for record in records if record.summary]
    return [value for value in values if value is not None]


def _different(group: Sequence[Record], key: str) -> set[Any]:
    """The values under a key that should be one: of the finished runs, or of all while none is finished."""
    return set(_values([record for record in group if record.finished] or group, key))


def _agreed(group: Sequence[Record], key: str) -> Any:
    """The one value that the runs give; None where they give none, or several: no number is better than a wrong one."""
    values = _different(group, key)
    return values.pop() if len(values) == 1 else None


def _size(group: Sequence[Record], key: str) -> float | None:
    """What the runs agree on; the mean over them where heads found their ranks, which differ by seed."""
    if not _found_ranks(group):
        return _agreed(group, key)
    values = _values([record for record in group if record.finished] or group, key)
    return sum(values) / len(values) if values else None


def _found_ranks(group: Sequence[Record]) -> bool:
    return bool(_values(group, "total_rank"))


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)


def _average(finished: Sequence[Record], key: str) -> Estimate:
    """Over all finished runs, or over none: a mean over fewer seeds than the row's n would be read wrongly."""
    values = _values(finished, key)
    return mean_interval(values if len(values) == len(finished) else [])


def _delta(finished: Sequence[Record], baseline: Sequence[Record], tested: bool) -> Delta:
    by_seed = {record.planned.seed: record for record in baseline}
    pairs = [(record, by_seed[record.planned.seed]) for record in finished if record.planned.seed in by_seed]
    found = paired_difference(
        _values([own for own, _ in pairs], "validation_loss"), _values([other for _, other in pairs], "validation_loss")
    )
    return Delta(found.n, found.mean, found.low, found.high, found.p if tested else None, None)


def _corrected(rows: Sequence[Row]) -> list[Row]:
    """The rows with Holm's correction over all planned comparisons, those without a p included."""
    corrected = iter(holm([row.delta.p for row in rows if row.delta]))
    return [replace(row, delta=replace(row.delta, p_holm=next(corrected))) if row.delta else row for row in rows]


_FACTS = {
    "step": "steps",
    "learning_rate": "learning rates",
    "parameters": "parameters",
    "head_output_parameters": "head output parameters",
    "flops_per_token": "FLOPs",
}
_SIZES = ("parameters", "head_output_parameters", "flops_per_token")
"""Key of a summary on which the finished runs of a row have to agree → what it is called in a flag."""


def _flags(group: Sequence[Record], baseline: Sequence[Record]) -> Iterator[str]:
    """What a reader has to know of a row before believing it."""
    states = {record.state for record in group}
    finished = [record for record in group if record.finished]
    counted = [*finished, *(record for record in baseline if record.finished)]
    yield from (name for name in ("diverged", "failed") if name in states)
    if states - {"finished", "diverged", "failed"}:
        yield "incomplete"
    if any(record.state == "diverged" for record in baseline):
        yield "baseline diverged"
    facts = {key: name for key, name in _FACTS.items() if not (key in _SIZES and _found_ranks(group))}
    yield from (f"mixed {name}" for key, name in facts.items() if finished and len(_different(group, key)) > 1)
    if _agreed(group, "masked_dense"):
        yield "masked dense: saves compute: no"
    for key in ("test_loss", "bits_per_byte", "induction_accuracy"):
        if 0 < len(_values(finished, key)) < len(finished):
            yield f"{key.replace('_', ' ')} incomplete"
    yield from (f"mixed {name}" for name, values in environment(counted).items() if len(values) > 1)


def _delta_flags(delta: Delta | None, n: int) -> Iterator[str]:
    if delta is not None and delta.n < n:
        yield "unpaired"
    if delta is not None and delta.n > 1 and delta.low == delta.high:
        yield "no spread"


def _flag_shared_runs(rows: Sequence[Row], groups: dict[tuple[str, str], list[Record]]) -> list[Row]:
    """Two arms that come to the same config share their runs: not independent rows, which has to be said."""
    first: dict[str, str] = {}
    flagged = []
    for row, group in zip(rows, groups.values(), strict=True):
        others = dict.fromkeys(first[r.planned.run_id] for r in group if r.planned.run_id in first)
        flags = (*row.flags, *(f"same runs as {arm}" for arm in others))
        flagged.append(replace(row, flags=flags))
        for record in group:
            first.setdefault(record.planned.run_id, record.planned.arm)
    return flagged


def _refuse_mixed_corpora(directory: Path, records: Sequence[Record]) -> None:
    runs: dict[str, list[str]] = {}
    for record in records:
        for digest in record.digests:
            runs.setdefault(digest, []).append(record.planned.run_id)
    if len(runs) < 2:
        return
    found = "; ".join(
        f"{digest[:12]} in {len(ids)} runs ({', '.join(ids[:3])}{', …' * (len(ids) > 3)})"
        for digest, ids in runs.items()
    )
    hint = (
        "losses on different texts cannot be compared: move the folders of one corpus away, then start the sweep again"
    )
    raise ReportError([Problem(str(directory), "corpus_digest", found, "one corpus for all runs of a table", hint)])

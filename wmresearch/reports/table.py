"""The table of a sweep: one row for each arm at each setting of the grid, with uncertainty, from the run directories.

Only finished runs are averaged. What cannot be averaged honestly is refused (different corpora) or flagged in its row.
"""

from __future__ import annotations

import statistics as exact
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from wmresearch.reports.manifest import environment, table_manifest
from wmresearch.reports.reach import reach
from wmresearch.reports.records import Record, ReportError, TunedArm, setting_key, unplanned
from wmresearch.reports.rendering import FORMATS, render
from wmresearch.reports.rows import Delta, Row, Table, Tasks, Tuning
from wmresearch.reports.statistics import (
    Estimate,
    equivalence,
    holm,
    mean_interval,
    paired_difference,
    resolvable_difference,
)
from wmresearch.reports.sweep_runs import SweepRuns, read_runs, tuning_states

__all__ = ["FORMATS", "ReportError", "Row", "SweepRuns", "Table", "build_table", "read_runs", "render"]

Loss = Literal["validation_loss", "test_loss"]


def build_table(directory: Path) -> Table:
    """The table of the sweep in a directory, from its plan and whatever its runs have left there so far.

    Raises:
        ReportError: there is no plan that can be used, or the runs read different corpora.
    """
    runs = read_runs(Path(directory))
    plan = runs.plan
    records = [record for group in runs.groups.values() for record in group]
    tested = plan.tuned and _values([record for record in records if record.finished], "test_loss")
    loss: Loss = "test_loss" if tested else "validation_loss"
    groups = _all_rows(runs)
    rows = [_whole_row(runs, arm, settings, group, loss) for arm, settings, group in groups]
    rows = _flag_shared_runs(_corrected(rows), [group for _, _, group in groups])
    family = sum(row.delta is not None for row in rows)
    manifest = table_manifest(records, unplanned(runs.directory, plan), family)
    return Table(plan.name, plan.baseline, tuple(rows), manifest, runs.varied, loss, plan.margin)


def _all_rows(runs: SweepRuns) -> list[tuple[str, dict[str, Any], list[Record]]]:
    """Arm, setting and runs of each row; where the sweep tunes, also of those that have no runs to report yet."""
    if not runs.plan.tuned:
        return [(arm, group[0].planned.settings, group) for (arm, _), group in runs.groups.items()]
    rows = []
    for tuned in runs.plan.tuned:
        settings = tuned.settings | (tuned.chosen or {})
        rows.append((tuned.arm, settings, runs.groups.get((tuned.arm, setting_key(settings)), [])))
    return rows


def _whole_row(runs: SweepRuns, arm: str, settings: dict[str, Any], group: Sequence[Record], loss: Loss) -> Row:
    baseline = runs.baseline_of(settings)
    row = _row(arm, settings, group, None if arm == runs.plan.baseline else baseline, loss, runs.plan.margin)
    adjusted = next((record.planned.adjusted for record in group if record.planned.adjusted), None)
    tuning = runs.tuning_of(settings, arm)
    return replace(
        row,
        adjusted=None if adjusted is None else adjusted.model_dump(),
        reach=reach(runs.directory, group, baseline) if runs.plan.reach else None,
        tuned=None if tuning is None else _tuning(runs, tuning, loss),
        flags=(*row.flags, *_tuning_flags(runs, tuning)),
    )


def _tuning(runs: SweepRuns, tuned: TunedArm, loss: Loss) -> Tuning:
    at_baseline = runs.at_baseline.get((tuned.arm, setting_key(tuned.settings)), [])
    finished = [record for record in at_baseline if record.finished]
    estimate = _average(finished if len(finished) == len(at_baseline) else [], loss)
    return Tuning(tuned.chosen, tuple(tuned.edges), len(tuned.tried), estimate)


def _tuning_flags(runs: SweepRuns, tuned: TunedArm | None) -> Iterator[str]:
    if tuned is None:
        return
    if tuned.chosen is None:
        states = tuning_states(runs.directory, runs.plan, tuned)
        yield "tuning failed" if {"failed", "unusable"} & set(states) else "not tuned yet"
    elif all(one.loss is None for one in tuned.tried):
        yield "diverged wherever tuned"
    yield from (f"best {key.rpartition('.')[2]} at the edge" for key in tuned.edges)


def _row(
    arm: str,
    settings: dict[str, Any],
    group: Sequence[Record],
    baseline: Sequence[Record] | None,
    loss: Loss,
    margin: float | None,
) -> Row:
    """The row of the runs of one arm at one setting. `baseline`: the baseline's runs there; None: these are they."""
    finished = [record for record in group if record.finished]
    paired_with = [record for record in baseline or () if record.finished]
    states = [record.state for record in group]
    delta = None if baseline is None else _delta(finished, paired_with, loss, "diverged" not in states, margin)
    flops = _size(group, "flops_per_token")
    baseline_flops = flops if baseline is None else _size(baseline, "flops_per_token")
    speeds = _values(finished, "tokens_per_second")
    return Row(
        arm=arm,
        settings=settings,
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


def _delta(
    finished: Sequence[Record], baseline: Sequence[Record], loss: Loss, tested: bool, margin: float | None
) -> Delta:
    by_seed = {record.planned.seed: record for record in baseline}
    pairs = [(record.summary, by_seed[record.planned.seed].summary) for record in finished
             if record.planned.seed in by_seed]  # fmt: skip
    known = [pair for pair in ((getattr(own, loss), getattr(other, loss)) for own, other in pairs) if None not in pair]
    found = paired_difference([own for own, _ in known], [other for _, other in known])
    one, other = [own for own, _ in known], [other for _, other in known]
    within = equivalence(one, other, margin).p if tested and margin is not None else None
    resolvable = resolvable_difference(found.sd, found.n) if found.sd else None
    return Delta(found.n, found.mean, found.low, found.high, found.p if tested else None, None, within, resolvable)


def _corrected(rows: Sequence[Row]) -> list[Row]:
    """The rows with Holm's correction over all planned comparisons, those without a p included."""
    deltas = [row.delta for row in rows if row.delta]
    differs, within = holm([delta.p for delta in deltas]), holm([delta.within for delta in deltas])
    both = iter(zip(differs, within, strict=True))

    def corrected(delta: Delta) -> Delta:
        p_holm, within = next(both)
        return replace(delta, p_holm=p_holm, within=within)

    return [replace(row, delta=corrected(row.delta)) if row.delta else row for row in rows]


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


def _flag_shared_runs(rows: Sequence[Row], groups: Sequence[Sequence[Record]]) -> list[Row]:
    """Two arms that come to the same config share their runs: not independent rows, which has to be said."""
    first: dict[str, str] = {}
    flagged = []
    for row, group in zip(rows, groups, strict=True):
        others = dict.fromkeys(first[r.planned.run_id] for r in group if r.planned.run_id in first)
        flags = (*row.flags, *(f"same runs as {arm}" for arm in others))
        flagged.append(replace(row, flags=flags))
        for record in group:
            first.setdefault(record.planned.run_id, record.planned.arm)
    return flagged

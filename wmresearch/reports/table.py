"""The table of sweeps: one row for each arm at each setting of the grid, with uncertainty, from the run directories.

Only finished runs are averaged. What cannot be averaged honestly is refused (different corpora) or flagged in its row.
"""

from __future__ import annotations

import statistics as exact
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wmresearch.config.problems import Problem
from wmresearch.reports.manifest import table_manifest
from wmresearch.reports.marks import delta_flags, flag_shared_runs, flags, marked
from wmresearch.reports.reach import reach
from wmresearch.reports.records import Record, ReportError, TunedArm, setting_key, unplanned
from wmresearch.reports.rendering import FORMATS, render
from wmresearch.reports.rows import WHOLE, Delta, Loss, Row, Table, Tasks, Tuning, View
from wmresearch.reports.statistics import (
    equivalence,
    holm,
    paired_difference,
    resolvable_difference,
)
from wmresearch.reports.sweep_runs import SweepRuns, read_runs, refuse_mixed_corpora, tuning_states, varied_keys
from wmresearch.reports.together import agreed, average, paired, size, values, whole
from wmresearch.reports.views import Besides, arranged

__all__ = ["FORMATS", "ReportError", "Row", "SweepRuns", "Table", "View", "build_table", "read_runs", "render"]


def build_table(*directories: Path, view: View = WHOLE) -> Table:
    """The table of the sweeps in the directories, from their plans and whatever their runs have left there so far.

    Each row is compared with its own sweep's baseline; p values are corrected over all comparisons of the table.

    Raises:
        ReportError: there is no plan that can be used, the runs read different corpora, the sweeps are compared by
            different losses, or the view names a column that there is not.
    """
    sweeps = [read_runs(Path(directory)) for directory in directories]
    loss = _compared_by(sweeps)
    margins = {runs.plan.margin for runs in sweeps}
    margin = margins.pop() if len(margins) == 1 else None
    rows, groups, besides = [], [], Besides(view)
    for runs in sweeps:
        for arm, settings, group in _all_rows(runs):
            row = _whole_row(runs, arm, settings, group, loss, margin)
            extra = besides.of(runs.directory, group, settings)
            rows.append(replace(row, sweep=runs.plan.name if len(sweeps) > 1 else "", extra=extra))
            groups.append(group)
    besides.refuse_unknown()
    rows = marked(flag_shared_runs(_corrected(rows), groups), groups, loss)
    records = [record for runs in sweeps for record in runs.records]
    ignored = [run for runs in sweeps for run in unplanned(runs.directory, runs.plan)]
    manifest = table_manifest(records, ignored, sum(row.delta is not None for row in rows))
    baselines = {runs.plan.baseline for runs in sweeps}
    name = " + ".join(runs.plan.name for runs in sweeps)
    varied = varied_keys([setting for runs in sweeps for setting in runs.all_settings])
    table = Table(name, baselines.pop() if len(baselines) == 1 else "", tuple(rows), manifest, varied, loss, margin)
    return arranged(replace(table, sweeps=len(sweeps), view=view))


def _compared_by(sweeps: Sequence[SweepRuns]) -> Loss:
    """The loss that all are compared by; refuses sweeps whose rows cannot stand in one column."""
    refuse_mixed_corpora([(runs.directory, record) for runs in sweeps for record in runs.records])
    found: dict[Loss, Path] = {}
    for runs in sweeps:
        ended = [record for record in runs.records if record.finished]
        tested = runs.plan.tuned and values(ended, "test_loss")
        found.setdefault("test_loss" if tested else "validation_loss", runs.directory)
    if len(found) > 1:
        text = f"{found['test_loss']} tunes and has a test loss, {found['validation_loss']} has the validation loss"
        expected = f"sweeps that are compared by one kind of loss: {text}"
        problem = Problem("wm table", "", "", expected, "make a table of each")
        raise ReportError([problem])
    return next(iter(found))


def _all_rows(runs: SweepRuns) -> list[tuple[str, dict[str, Any], list[Record]]]:
    """Arm, setting and runs of each row; where the sweep tunes, also of those that have no runs to report yet."""
    if not runs.plan.tuned:
        return [(arm, group[0].planned.settings, group) for (arm, _), group in runs.groups.items()]
    rows = []
    for tuned in runs.plan.tuned:
        settings = tuned.settings | (tuned.chosen or {})
        rows.append((tuned.arm, settings, runs.groups.get((tuned.arm, setting_key(settings)), [])))
    return rows


def _whole_row(
    runs: SweepRuns, arm: str, settings: dict[str, Any], group: Sequence[Record], loss: Loss, margin: float | None
) -> Row:
    baseline = runs.baseline_of(settings)
    row = _row(arm, settings, group, None if arm == runs.plan.baseline else baseline, loss, margin)
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
    estimate = average(finished if len(finished) == len(at_baseline) else [], loss)
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
    flops = size(group, "flops_per_token")
    baseline_flops = flops if baseline is None else size(baseline, "flops_per_token")
    speeds = values(finished, "tokens_per_second")
    return Row(
        arm=arm,
        settings=settings,
        n=len(finished),
        planned=len(group),
        finished=len(finished),
        diverged=states.count("diverged"),
        failed=states.count("failed"),
        flags=(*flags(group, baseline or ()), *delta_flags(delta, len(finished))),
        learning_rate=agreed(group, "learning_rate"),
        validation_loss=average(finished, "validation_loss"),
        test_loss=average(finished, "test_loss"),
        bits_per_byte=average(finished, "bits_per_byte"),
        delta=delta,
        parameters=whole(size(group, "parameters")),
        head_output_parameters=whole(size(group, "head_output_parameters")),
        head_output_nonzeros=whole(size(group, "head_output_nonzeros")),
        total_rank=agreed(group, "total_rank"),
        flops_per_token=flops,
        training_flops=size(group, "training_flops"),
        saves_compute=None if flops is None or baseline_flops is None else flops < baseline_flops,
        tokens_per_second=exact.median(speeds) if speeds else None,
        tasks=_tasks(finished),
    )


def _tasks(finished: Sequence[Record]) -> Tasks | None:
    keys = ("recall_accuracy", "induction_accuracy", "induction_gain")
    if not any(values(finished, key) for key in keys):
        return None
    return Tasks(*(average(finished, key) for key in keys))


def _delta(
    finished: Sequence[Record], baseline: Sequence[Record], loss: Loss, tested: bool, margin: float | None
) -> Delta:
    one, other = paired(finished, baseline, loss)
    found = paired_difference(one, other)
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

"""A sweep before it is run: its runs, and what they take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from wmresearch.reports.listings import aligned
from wmresearch.reports.numbers import duration, flops, memory
from wmresearch.sweeps.budgets import Adjustment, Budgets
from wmresearch.sweeps.cohorts import cohort_key
from wmresearch.sweeps.estimates import estimate_run, measured_step
from wmresearch.sweeps.plan import Plan, PlannedRun
from wmresearch.sweeps.store import settings_text
from wmresearch.training.run_directory import RunDirectory


def plan_listing(plan: Plan, directory: Path, jobs: int = 1, measure: Callable[[str], None] | None = None) -> str:
    """The runs of a sweep with their state, and for each arm what its runs take.

    `measure`: told what is measured; without it no step is made, and no time is estimated.
    """
    columns = ("run", "arm", "settings", "seed", "role", "steps", "state")
    tunes = plan.sweep.tune is not None
    rows = [
        (run.run_id, run.arm, settings_text(run.settings), run.seed, run.role if tunes else "",
         run.config.training.steps, RunDirectory(directory / run.run_id).state())
        for run in plan.runs
    ]  # fmt: skip
    parts = [aligned(columns, rows, right=5), _arms(plan, jobs, measure)]
    return "\n".join([*parts, f"{len(plan.runs)} runs in {directory}\n"])


def _arms(plan: Plan, jobs: int, measure: Callable[[str], None] | None) -> str:
    """A line for each kind of run, all of whose runs take the same; then what all of them take."""
    groups: dict[tuple[str, str], list[PlannedRun]] = {}
    for run in plan.runs:
        groups.setdefault((run.arm, cohort_key(run.config)), []).append(run)
    budgets = Budgets()
    rows, totals = [], []
    for runs in groups.values():
        first = runs[0]
        step = None
        if measure is not None:
            measure(f"{first.arm}: timing a step")
            step = measured_step(first.config)
        found = estimate_run(first.config, budgets, step)
        totals += [found] * len(runs)
        shared = {
            key: value for key, value in first.settings.items() if all(run.settings.get(key) == value for run in runs)
        }
        rows.append((
            first.arm, settings_text(shared), _adjusted(first.adjusted), len(runs), f"{found.parameters:,}",
            f"{found.head_output_parameters:,}", flops(found.flops),
            memory(found.bytes), "" if found.seconds is None else duration(found.seconds),
        ))  # fmt: skip
    columns: tuple[str, ...] = ("arm", "settings", "matched", "runs", "parameters", "head outputs")
    columns += ("FLOPs a run", "disk a run", "time a run")
    said = f"{len({cohort for _, cohort in groups})} cohorts, each of one compiled program\n"
    said += f"all: {flops(sum(t.flops for t in totals))}, {memory(sum(t.bytes for t in totals))} on disk"
    seconds = [total.seconds for total in totals if total.seconds is not None]
    if measure is None:
        said += "; --measure times a step of each arm and estimates how long it takes"
    elif seconds:
        said += f", {duration(sum(seconds) / jobs)} with {jobs} job{'s' * (jobs > 1)}"
    return "\n".join([aligned(columns, rows, right=3) + said, *_to_come(plan)]) + "\n"


def _to_come(plan: Plan) -> list[str]:
    """What a sweep that tunes will run after these."""
    sweep = plan.sweep
    if sweep.tune is None or any(run.role == "report" for run in plan.runs):
        return []
    cells, seeds = len(plan.cells), len(sweep.report_seeds)
    grows = f"grids grow by at most {sweep.tune.extend} values a key where a best value lies on an edge"
    least, most = cells * seeds, (2 * cells - 1) * seeds
    return [f"these tune ({grows}); then {least} to {most} report runs: each arm at its best values and the baseline's"]


def _adjusted(adjusted: Adjustment | None) -> str:
    if adjusted is None:
        return ""
    return f"{adjusted.key} {adjusted.before} → {adjusted.after} ({adjusted.budget} {adjusted.off:+.2%})"

"""One line that says how far a run or a sweep is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from wmresearch.reports.numbers import duration, quantity

if TYPE_CHECKING:
    from wmresearch.training.recorder import Progress


def run_progress(progress: Progress) -> str:
    """Step, loss, speed, time left, and what the run does."""
    parts = [f"step {progress.step}/{progress.steps}"]
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4f}")
    if progress.tokens_per_second is not None:
        parts.append(f"{quantity(progress.tokens_per_second)} tokens/s")
    if progress.seconds_left is not None:
        parts.append(f"{duration(progress.seconds_left)} left")
    return ", ".join([*parts, progress.message])


def steps_done(directory: Path) -> int:
    """Of all runs of a sweep."""
    from wmresearch.sweeps.store import statuses

    return sum(run.step for run in statuses(directory))


def sweep_progress(directory: Path, name: str, started: float, before: int) -> str:
    """Runs done, the running ones, and the time left; `before`: the steps that were done when this start began."""
    from wmresearch.sweeps.store import ENDED, statuses

    runs = statuses(directory)
    ended = sum(run.state in ENDED for run in runs)
    running = [run for run in runs if run.state == "running"]
    parts = [f"{name}: {ended} of {len(runs)} runs done"]
    for run in running[:1]:
        loss = "" if run.loss is None else f", loss {run.loss:.3f}"
        speed = "" if run.tokens_per_second is None else f", {quantity(run.tokens_per_second)} tokens/s"
        parts.append(f"{run.arm} seed {run.seed}: step {run.step}/{run.steps or '?'}{loss}{speed}")
    if len(running) > 1:
        parts.append(f"and {len(running) - 1} more")
    lengths = [run.steps for run in runs if run.steps]
    if lengths and (done := sum(run.step for run in runs) - before) > 0:
        left = max(0, round(sum(lengths) / len(lengths) * len(runs)) - before - done)
        parts.append(f"{duration(left * (time.monotonic() - started) / done)} left")
    return " · ".join(parts)

"""Trains a sweep in rounds: what is known to be missing, then what the results ask for, until nothing is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from wmresearch.sweeps.plan import Plan, extended, results_in
from wmresearch.sweeps.store import write_plan


def train_all(plan: Plan, directory: Path, launch: Callable[[], bool]) -> bool:
    """Writes the plan, launches, and writes the plan that follows, while it has more runs. False where it was stopped.

    `launch` trains what is missing in the directory, and says whether it came to an end. Each plan follows from the
    sweep and the results alone, so that a sweep which was stopped anywhere goes on as if it had not been.

    Raises:
        ConfigError: the directory is or holds something else than this sweep.
    """
    result = results_in(directory)
    plan = extended(plan, result)
    write_plan(directory, plan)
    while True:
        completed = launch()
        known, plan = plan, extended(plan, result)
        if plan != known:
            write_plan(directory, plan)
        if not completed or plan.runs == known.runs:
            return completed

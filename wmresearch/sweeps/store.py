"""A sweep's directory: the plan in `sweep.json`, and each run in a folder named by its id."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wmresearch.config import ConfigError, Problem
from wmresearch.sweeps.plan import Plan
from wmresearch.training.files import read_json, write_json
from wmresearch.training.run_directory import FINAL, RunDirectory, RunLabels

STALE_SECONDS = 60.0
"""A running run whose heartbeat is older is shown as silent."""


@dataclass(frozen=True)
class RunStatus:
    """Where one run is, as its directory says."""

    run_id: str
    arm: str
    settings: dict[str, Any]
    seed: int
    state: str
    reason: str | None
    step: int
    steps: int | None
    loss: float | None
    tokens_per_second: float | None
    seconds_left: float | None


def write_plan(directory: Path, plan: Plan) -> None:
    """Lays out the sweep's directory. Runs that are there already keep what they have.

    Raises:
        ConfigError: the directory holds another sweep.
    """
    old = read_json(directory / "sweep.json")
    if old is not None and old["name"] != plan.sweep.name:
        expected = f"an empty folder, or one with sweep '{plan.sweep.name}'"
        raise ConfigError([Problem(str(directory), "", f"sweep '{old['name']}'", expected, "choose another --dir")])
    directory.mkdir(parents=True, exist_ok=True)
    for run in plan.runs:
        folder = RunDirectory(directory / run.run_id)
        folder.path.mkdir(exist_ok=True)
        labels = {"sweep": plan.sweep.name, "arm": run.arm, "role": run.role, "settings": run.settings}
        summary = folder.summary()
        if summary.get("state") not in FINAL:  # what is not part of the run's identity may have changed
            folder.write_config(run.config)
        if not summary:
            named = RunLabels(run.run_id, plan.sweep.name, run.arm, run.role, run.settings)
            folder.write_summary(named, run.config, "pending")
        elif summary != summary | labels:  # the same run under a new name
            write_json(folder.path / "summary.json", summary | labels)
    write_json(
        directory / "sweep.json",
        {
            "name": plan.sweep.name,
            "baseline": plan.sweep.baseline,
            "arms": list(plan.sweep.arms),
            "grid": plan.sweep.grid or {},
            "seeds": plan.sweep.seeds,
            "runs": [
                {"run_id": run.run_id, "arm": run.arm, "settings": run.settings, "seed": run.seed, "role": run.role}
                for run in plan.runs
            ],
        },
    )


def read_plan(directory: Path) -> dict[str, Any]:
    """What `write_plan` wrote.

    Raises:
        ConfigError: there is no sweep in the directory.
    """
    plan = read_json(directory / "sweep.json")
    if plan is None:
        hint = "start one with `wm sweep SWEEP --dir DIR`"
        raise ConfigError([Problem(str(directory), "", "", "the directory of a sweep (with a sweep.json)", hint)])
    return plan


def missing(directory: Path) -> list[dict[str, Any]]:
    """The planned runs that are not finished or diverged."""
    plan = read_plan(directory)
    return [run for run in plan["runs"] if RunDirectory(directory / run["run_id"]).state() not in FINAL]


def statuses(directory: Path) -> list[RunStatus]:
    """Where each planned run is, in plan order."""
    return [_status(directory, run) for run in read_plan(directory)["runs"]]


def _status(directory: Path, run: dict[str, Any]) -> RunStatus:
    folder = RunDirectory(directory / run["run_id"])
    status = folder.status() or {}
    summary = folder.summary()
    state = summary.get("state", "pending")
    silent = time.time() - status.get("heartbeat", 0.0) > STALE_SECONDS
    return RunStatus(
        run_id=run["run_id"],
        arm=run["arm"],
        settings=run["settings"],
        seed=run["seed"],
        state="running (silent)" if state == "running" and silent else state,
        reason=summary.get("reason"),
        step=status.get("step") or summary.get("step") or 0,
        steps=status.get("steps"),
        loss=status.get("loss") or summary.get("train_loss"),
        tokens_per_second=status.get("tokens_per_second"),
        seconds_left=status.get("seconds_left"),
    )

"""A sweep's directory: the plan in `sweep.json`, and each run in a folder named by its id."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from wmresearch.config import ConfigError, Problem
from wmresearch.sweeps.cohorts import cohort_key
from wmresearch.sweeps.plan import Plan, PlannedRun, Tuned
from wmresearch.training.files import read_json, write_json
from wmresearch.training.run_directory import FINAL, RunDirectory, RunLabels
from wmresearch.training.run_lock import RunBusyError

ENDED = ("finished", "diverged", "failed")
"""States of a run that this start of a sweep does not train again."""

STALE_SECONDS = 60.0
"""A running run whose heartbeat is older is shown as silent."""


@dataclass(frozen=True)
class RunStatus:
    """Where one run is, as its directory says."""

    run_id: str
    arm: str
    settings: dict[str, Any]
    seed: int
    role: str
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
        ConfigError: the directory is or holds something else than this sweep.
    """
    _refuse_another(directory, plan.sweep.name)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = Problem(str(directory), "", "", "a folder that can be made and written", error.strerror or "")
        raise ConfigError([problem]) from None
    for run in plan.runs:
        folder = RunDirectory(directory / run.run_id)
        with suppress(RunBusyError), folder.locked():  # a run that another launch is at is left to it
            _lay_out(folder, plan.sweep.name, run)
    write_json(
        directory / "sweep.json",
        {
            "name": plan.sweep.name,
            "baseline": plan.sweep.baseline,
            "arms": list(plan.sweep.arms),
            "seeds": plan.sweep.model_dump(mode="json")["seeds"],
            "reach": plan.sweep.reach,
            "margin": plan.sweep.margin,
            "tuned": [_plain_tuned(tuned) for tuned in plan.tuned],
            "runs": [_plain_run(run) for run in plan.runs],
        },
    )


def _plain_run(run: PlannedRun) -> dict[str, Any]:
    plain = {"run_id": run.run_id, "arm": run.arm, "settings": run.settings, "seed": run.seed, "role": run.role}
    plain["cohort"] = cohort_key(run.config)
    return plain | ({"adjusted": run.adjusted.to_dict()} if run.adjusted else {})


def _plain_tuned(tuned: Tuned) -> dict[str, Any]:
    """A loss is null where a run diverged, failed or is not there yet."""
    tried = [
        {"values": values, "loss": loss if isinstance(loss, float) and isfinite(loss) else None}
        for values, loss in tuned.tried
    ]
    return {**vars(tuned), "edges": list(tuned.edges), "tried": tried}


def _refuse_another(directory: Path, name: str) -> None:
    old = read_json(directory / "sweep.json")
    found = f"sweep '{old['name']}'" if old is not None and old["name"] != name else ""
    if old is None and (directory / "summary.json").exists():
        found = "a single run"
    if found:
        expected = f"an empty folder, or one with sweep '{name}'"
        raise ConfigError([Problem(str(directory), "", found, expected, "choose another --dir")])


def _lay_out(folder: RunDirectory, sweep: str, run: PlannedRun) -> None:
    labels = {"sweep": sweep, "arm": run.arm, "role": run.role, "settings": run.settings}
    summary = folder.summary()
    if summary.get("state") not in FINAL:  # what is not part of the run's identity may have changed
        folder.write_config(run.config)
    if not summary:
        folder.write_summary(labels_of(sweep, vars(run)), run.config, "pending")
    elif summary != summary | labels:  # the same run under a new name
        write_json(folder.path / "summary.json", summary | labels)


def labels_of(sweep: str, run: Mapping[str, Any]) -> RunLabels:
    """Of a run as `sweep.json` has it."""
    return RunLabels(run["run_id"], sweep, run["arm"], run["role"], run["settings"])


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


def settings_text(settings: dict[str, Any]) -> str:
    """'optimizer.learning_rate=0.003 …'."""
    return " ".join(f"{key}={value}" for key, value in settings.items())


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
        role=run["role"],
        state="running (silent)" if state == "running" and silent else state,
        reason=summary.get("reason"),
        step=status.get("step") or summary.get("step") or 0,
        steps=status.get("steps"),
        loss=status.get("loss") or summary.get("train_loss"),
        tokens_per_second=status.get("tokens_per_second"),
        seconds_left=status.get("seconds_left"),
    )

"""What a SLURM job does: it trains its runs; where it has to go before their end, it saves them and is queued again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from submitit.core.job_environment import JobEnvironment
from submitit.core.utils import DelayedSubmission

from wmresearch.sweeps.worker import train_together
from wmresearch.training.interruption import StopRequest, stop_on_signal
from wmresearch.training.run_directory import RunDirectory

BUSY_SECONDS = 60.0
"""So long it waits for the process that holds a run: a job that lost its node may be queued again before it is dead."""


@dataclass(frozen=True)
class SlurmJob:
    """Runs of one cohort that a job trains, as submitit keeps them."""

    directory: Path
    """The sweep's."""
    sweep: str
    runs: tuple[dict[str, Any], ...]
    tries: int
    """So often it starts without coming further before it gives up."""
    saved: int = 0
    """Steps that checkpoints held when it was submitted, or queued again."""
    fruitless: int = 0
    """Starts in a row that added none."""

    def __call__(self) -> dict[str, str]:
        """Run → the state in which it was left."""
        with stop_on_signal() as stop:  # in place of submitit's handlers, which do not wait for a checkpoint
            states = self._train(stop)
        if "preempted" in states.values() and _to_be_queued_again():
            signal.raise_signal(JobEnvironment._usr_sig())  # submitit's handler: `checkpoint`, requeue, exit
        return states

    def _train(self, stop: StopRequest) -> dict[str, str]:
        states = {run["run_id"]: "preempted" for run in self.runs}
        short: list[dict[str, Any]] = []  # of memory, beside others
        waiting, end = list(self.runs), time.monotonic() + BUSY_SECONDS

        def answered(answer: dict[str, Any]) -> None:
            states[answer["run_id"]] = answer["state"]
            if answer.get("failure") == "out_of_memory" and len(self.runs) > 1:
                short.extend(run for run in self.runs if run["run_id"] == answer["run_id"])

        while waiting and stop.signal is None:
            train_together(self.directory, self.sweep, waiting, answered, stop)
            waiting = [run for run in waiting if states[run["run_id"]] == "busy" and time.monotonic() < end]
            if waiting:
                time.sleep(1.0)
        for run in short:  # once more, each by itself
            train_together(self.directory, self.sweep, [run], answered, stop, alone=True)
        return states

    def checkpoint(self) -> DelayedSubmission | None:
        """What to queue again: submitit's hook, which it also calls where the signal comes before training listens."""
        saved = saved_steps(self.directory, [run["run_id"] for run in self.runs])
        fruitless = 0 if saved > self.saved else self.fruitless + 1
        if fruitless >= self.tries:
            return None
        return DelayedSubmission(replace(self, saved=saved, fruitless=fruitless))


def saved_steps(directory: Path, run_ids: list[str]) -> int:
    """The sum over runs of the steps that their newest checkpoints hold."""
    return sum(max(RunDirectory(directory / run_id).saved_steps(), default=0) for run_id in run_ids)


def _to_be_queued_again() -> bool:
    """Whether this job was told to go while it could go on: by its time limit's warning, or for a job that comes first.

    One that was cancelled is over, and one that lost its node was queued again by SLURM itself.
    """
    # by its place in the array: the number in SLURM_JOB_ID is, for its last task, that of the whole array
    command = ["squeue", "--noheader", "--states=all", "--format=%T|%N", f"--jobs={JobEnvironment().job_id}"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout.strip()
    return answer == f"RUNNING|{os.environ['SLURM_JOB_NODELIST']}"

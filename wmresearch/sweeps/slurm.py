"""Trains what is missing of a sweep in SLURM jobs: arrays with one task for each unit of work.

SLURM schedules. Here is submitted what has no job, and again what was lost with its job. `slurm/jobs.json` in the
sweep's directory says which job has which run, so that a second launch finds the jobs of the first and submits nothing
twice.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from filelock import FileLock

from wmresearch.config import ConfigError, Problem, yaml_text
from wmresearch.sweeps import cohorts
from wmresearch.sweeps.store import labels_of, missing, read_plan
from wmresearch.training.files import read_json, write_json
from wmresearch.training.interruption import StopRequest, stop_on_signal
from wmresearch.training.run_directory import FINAL, RunDirectory
from wmresearch.training.run_lock import RunBusyError

if TYPE_CHECKING:
    from submitit import SlurmExecutor

POLL_SECONDS = 0.5
ASK_SECONDS = 10.0
"""SLURM is asked so often: many watchers on one cluster are a load."""
ARRAY_SIZE = 1000
"""Tasks of one array: most clusters allow 1001."""
TRIES = 3
"""A run is submitted so often without a new checkpoint."""

Run: TypeAlias = dict[str, Any]

_OVER = {
    "BOOT_FAIL": "did not start: its node failed",
    "CANCELLED": "was cancelled",
    "COMPLETED": "ended without finishing it",
    "DEADLINE": "could not end before its deadline",
    "FAILED": "failed",
    "NODE_FAIL": "lost its node",
    "OUT_OF_MEMORY": "ran out of memory",
    "PREEMPTED": "had to go for another job",
    "TIMEOUT": "reached its time limit",
    "": "is gone, and SLURM no longer knows why",
}
"""States of a job that is over; in all others it is queued or runs."""

_OURS = ("nodes", "ntasks", "ntasks_per_node", "array", "array_parallelism", "output", "error", "use_srun", "requeue")


@dataclass(frozen=True)
class SlurmOptions:
    """What each job asks for."""

    partition: str | None = None
    account: str | None = None
    gres: str | None = None
    minutes: int = 60
    """Its time limit. A run that takes longer is saved shortly before, and its job is queued again."""
    cpus: int | None = None
    memory: str | None = None
    parallel: int | None = None
    """Jobs of an array that run at once, each of which trains runs of a cohort together; None: a job for each run, as
    many as fit."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Other parameters of submitit's, or options of sbatch."""


def parameters_of(texts: Iterable[str]) -> dict[str, Any]:
    """`KEY=VALUE` as parameters: `qos=low` and `slurm_qos=low` are the same.

    Raises:
        ConfigError: they are not that, or decide what is decided here.
    """
    more, problems = {}, []
    for text in texts:
        key, given, value = text.partition("=")
        name = key.strip().removeprefix("slurm_").replace("-", "_")
        if not given or not name.isidentifier():
            problems.append(Problem("command line", "--slurm", text, "KEY=VALUE, for instance qos=low"))
        elif name in _OURS:
            expected = "something else: a unit of a sweep is one task of an array on one node"
            problems.append(Problem("command line", f"--slurm {key}", value, expected))
        else:
            more[name] = yaml_text.parse(value, f"--slurm {key}")
    if problems:
        raise ConfigError(problems)
    return more


class SlurmLauncher:
    """Submits what has no job, watches, and submits again what was lost, until all runs have ended.

    A run that fails by itself is not tried again. One whose job was cancelled or lost, or ran out of time or memory, is
    submitted again, `TRIES` times without a new checkpoint; then it has failed, with the reason. After a job ran out of
    memory each of its runs has a job for itself.
    """

    def __init__(self, directory: Path, options: SlurmOptions) -> None:
        self._directory = directory.absolute()
        self._folder = self._directory / "slurm"
        self._options = options
        self._sweep: str = read_plan(directory)["name"]
        self._first = True
        self.note = ""
        """One line on what SLURM has of it."""

    def run(self, watch: Callable[[], None]) -> bool:
        """Trains until all has ended, calling `watch` twice a second. False where it was told to stop; jobs go on."""
        executor = self._executor()
        asked = float("-inf")
        with stop_on_signal() as stop:
            ended = False
            while not ended and stop.signal is None:
                if time.monotonic() - asked >= ASK_SECONDS:
                    ended = self._step(executor, stop)
                    asked = time.monotonic()
                watch()
                ended = ended or not missing(self._directory)
                time.sleep(0.0 if ended else POLL_SECONDS)
        return stop.signal is None

    def jobs(self) -> list[str]:
        """The jobs and arrays that are queued or run, for scancel."""
        records = self._records()
        states = job_states({record["job"] for record in records.values()}) or {}
        return sorted({job.split("_")[0] for job, state in states.items() if state not in _OVER})

    def _step(self, executor: SlurmExecutor, stop: StopRequest) -> bool:
        """Does what there is to do; whether nothing is left. Watchers of one sweep take turns."""
        with FileLock(self._folder / ".lock"):
            records, runs = self._records(), missing(self._directory)
            states = job_states({records[run["run_id"]]["job"] for run in runs if run["run_id"] in records})
            if states is None:
                self.note = "SLURM does not answer"
                return False
            lost: list[tuple[Run, str | None, bool]] = []
            waiting = False
            for run in runs:
                record = records.get(run["run_id"], {})
                state = states.get(record.get("job", ""), "")
                alone = state == "OUT_OF_MEMORY" or record.get("alone", False)
                if state not in _OVER:
                    waiting = True
                elif not record or self._first:
                    lost.append((run, None, alone))
                elif RunDirectory(self._directory / run["run_id"]).state() != "failed":
                    lost.append((run, self._reason(record["job"], state), alone))
            self._first = False
            again = [
                run | {"alone": alone}
                for run, reason, alone in lost
                if stop.signal is None and self._may_start(run, reason, records, alone=alone)
            ]
            if again:
                self._submit(executor, again, records)
            alive = [state for state in states.values() if state not in _OVER]
            counts = [f"{alive.count(state)} {state.lower()}" for state in dict.fromkeys(alive)]
            self.note = f"jobs: {', '.join(counts)}" if counts else ""
            return not lost and not waiting

    def _may_start(self, run: Run, reason: str | None, records: dict[str, Any], *, alone: bool) -> bool:
        """Makes a run ready for a new job, with `reason` if it lost one; where that was its last try it has failed."""
        folder = RunDirectory(self._directory / run["run_id"])
        with suppress(RunBusyError), folder.locked():  # where somebody is at it, it is alive
            summary = folder.summary()  # read once more: on a shared file system the first reading may have been old
            if summary["state"] in FINAL:
                return False
            saved = max(folder.saved_steps(), default=0)
            record = records.get(run["run_id"])
            tries = 1 if record is None or reason is None or saved > record["saved"] else record["tries"] + 1
            if tries > TRIES:
                last = f"{reason} ({TRIES} times without coming further)"
                folder.write_failure(labels_of(self._sweep, run), folder.config(), last, "killed")
                return False
            said = reason and f"{reason}; submitted again, try {tries} of {TRIES}"
            write_json(folder.path / "summary.json", summary | {"state": "pending", "reason": said})
            records[run["run_id"]] = {"job": "", "saved": saved, "tries": tries, "alone": alone}
            return True
        return False

    def _submit(self, executor: SlurmExecutor, runs: Sequence[Run], records: dict[str, Any]) -> None:
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        from wmresearch.sweeps.slurm_job import SlurmJob, saved_steps

        units = [unit.runs for unit in cohorts.units(runs, self._options.parallel or len(runs))]
        for start in range(0, len(units), ARRAY_SIZE):
            part = units[start : start + ARRAY_SIZE]
            saved = [saved_steps(self._directory, [run["run_id"] for run in unit]) for unit in part]
            try:
                with executor.batch():
                    jobs = [
                        executor.submit(SlurmJob(self._directory, self._sweep, tuple(unit), TRIES, steps))
                        for unit, steps in zip(part, saved, strict=True)
                    ]
            except (FailedJobError, FailedSubmissionError) as error:
                said = " ".join(str(error).split())
                raise ConfigError([Problem("SLURM", "sbatch", "", "a job that it takes", f"it says: {said}")]) from None
            for unit, job in zip(part, jobs, strict=True):
                for run in unit:
                    records[run["run_id"]]["job"] = job.job_id
            write_json(self._folder / "jobs.json", records)

    def _records(self) -> dict[str, Any]:
        """Run → its newest job, what checkpoints held when that was submitted, how often it was without more, and
        whether it is to be alone in a job.
        """
        return read_json(self._folder / "jobs.json") or {}

    def _reason(self, job: str, state: str) -> str:
        log = self._folder / f"{job}_0_log.err"
        words = ""
        if state == "FAILED" and log.exists():
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            words = next((f": {line}"[:300] for line in reversed(lines) if line and not line.startswith("srun: ")), "")
        return f"SLURM job {job} {_OVER[state]}{words}; see {log}"

    def _executor(self) -> SlurmExecutor:
        """Raises: ConfigError: there is no submitit, or no SLURM."""
        # unless told not to, it closes everybody's log handlers and writes its own to standard output
        os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")
        try:
            import submitit
        except ImportError:
            problem = Problem("--launcher", "", "slurm", "the package submitit", "pip install 'wmresearch[slurm]'")
            raise ConfigError([problem]) from None
        self._folder.mkdir(exist_ok=True)
        try:
            # of restarts by the time limit there may be any number, as long as each comes further
            executor = submitit.SlurmExecutor(self._folder, max_num_timeout=10**9)
        except RuntimeError:
            expected = "a machine from which jobs are submitted: there is no srun on this one"
            raise ConfigError([Problem("--launcher", "", "slurm", expected)]) from None
        options, own = self._options, submitit.SlurmExecutor._valid_parameters()
        stated = {
            "job_name": self._sweep, "partition": options.partition, "account": options.account, "gres": options.gres,
            "cpus_per_task": options.cpus, "mem": options.memory, "time": options.minutes,
            "signal_delay_s": min(90, 15 * options.minutes), "array_parallelism": options.parallel or ARRAY_SIZE,
            "srun_args": None if options.cpus is None else [f"--cpus-per-task={options.cpus}"],  # it inherits none
        }  # fmt: skip
        parameters = stated | {key: value for key, value in options.more.items() if key in own}
        others = {key: value for key, value in options.more.items() if key not in own}
        executor.update_parameters(**parameters, additional_parameters=others | {"requeue": True})
        return executor


def job_states(jobs: Iterable[str]) -> dict[str, str] | None:
    """Job → its state, of those that SLURM knows; None where it does not answer."""
    numbers = sorted({job.split("_")[0] for job in jobs if job})
    if not numbers:
        return {}
    command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T", f"--jobs={','.join(numbers)}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:
        return {} if "Invalid job id" in answer.stderr else None
    pairs = (line.strip().partition("|") for line in answer.stdout.splitlines())
    return {job: state for job, _, state in pairs if job}

"""Runs what is missing of a sweep in worker processes on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from wmresearch.sweeps.cohorts import Unit, units
from wmresearch.sweeps.store import labels_of, missing, read_plan
from wmresearch.training.interruption import StopRequest, stop_on_signal
from wmresearch.training.run_directory import FINAL, RunDirectory
from wmresearch.training.run_lock import RunBusyError

POLL_SECONDS = 0.5
_TRIES = 2


class LocalLauncher:
    """`jobs` worker processes that take cohorts from one queue in plan order.

    A worker that dies (killed, out of memory, a crash in a library) is replaced. The runs that it was at, and one that
    ran out of memory beside others, are tried once more, each with a worker for itself; then they are recorded as
    failed. Runs that another launch is at are waited for, and taken over where it dies.
    """

    def __init__(self, directory: Path, jobs: int) -> None:
        self._directory = directory
        self._sweep: str = read_plan(directory)["name"]
        self._queue = deque(units(missing(directory), jobs))
        self._jobs = min(jobs, len(self._queue))
        self._busy: list[dict[str, Any]] = []
        self._deaths: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._stop = StopRequest()
        self._workers: set[subprocess.Popen[str]] = set()
        self._trouble: OSError | None = None

    def run(self, watch: Callable[[], None]) -> bool:
        """Trains until the queue is empty, calling `watch` twice a second. False where it was told to stop.

        SIGINT and SIGTERM are handed on to the workers: each saves its runs and ends.

        Raises:
            OSError: a worker cannot be started, or what became of its runs cannot be written.
        """
        threads = [threading.Thread(target=self._work, args=(slot,), daemon=True) for slot in range(self._jobs)]
        with stop_on_signal() as self._stop:
            for thread in threads:
                thread.start()
            while alive := [thread for thread in threads if thread.is_alive()]:
                watch()
                alive[0].join(POLL_SECONDS)
                if self._stop.signal is not None:
                    for worker in list(self._workers):
                        worker.terminate()
        if self._trouble is not None:
            raise self._trouble
        watch()
        return self._stop.signal is None

    def _next(self) -> Unit | None:
        while self._stop.signal is None:
            with self._lock:
                if self._queue:
                    return self._queue.popleft()
                if not self._busy:
                    return None
                free = [run for run in self._busy if not RunDirectory(self._directory / run["run_id"]).is_busy()]
                self._busy = [run for run in self._busy if run not in free]
                self._queue.extend(units(free, self._jobs))
            time.sleep(POLL_SECONDS)
        return None

    def _work(self, slot: int) -> None:
        try:
            unit = self._next()
            while unit is not None:
                unit = self._feed(unit, slot)
        except OSError as error:  # for instance of a full disk
            self._trouble = error

    def _feed(self, unit: Unit | None, slot: int) -> Unit | None:
        """Starts one worker and gives it units until the queue is empty or it ends; returns the unit to go on with."""
        command = [sys.executable, "-m", "wmresearch.sweeps.worker", str(self._directory)]
        pipe = subprocess.PIPE
        with (
            (self._directory / "worker.log").open("a", encoding="utf-8") as log,
            subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=_environment(slot, self._jobs)
            ) as worker,
        ):
            self._workers.add(worker)
            while unit is not None:
                left = {run["run_id"]: run for run in unit.runs}
                ended = False
                for answer in _ask(worker, unit, self._jobs):
                    self._take(answer, left.pop(answer["run_id"]), unit)
                    ended |= answer["state"] == "preempted"  # it was told to stop
                if left:
                    code = worker.wait()
                    ended = True
                    if self._stop.signal is None:
                        self._bury(list(left.values()), code)
                unit = self._next()
                if ended:
                    break
            self._workers.discard(worker)
            with suppress(BrokenPipeError):
                worker.stdin.close()  # type: ignore[union-attr]
        return unit

    def _take(self, answer: dict[str, Any], run: dict[str, Any], unit: Unit) -> None:
        """What follows from how a run ended."""
        with self._lock:
            if answer["state"] == "busy":
                self._busy.append(run)
            elif answer["state"] == "preempted":  # if this launch is to stop too, it is not begun again
                self._queue.append(Unit((run,)))
            elif answer.get("failure") == "out_of_memory" and len(unit.runs) > 1:
                self._queue.append(Unit((run,), alone=True))

    def _bury(self, left: Sequence[dict[str, Any]], code: int) -> None:
        """A worker died before these runs were ended: those that it was at are tried once more, or have failed."""
        begun = [run for run in left if RunDirectory(self._directory / run["run_id"]).state() == "running"] or left
        with self._lock:
            rest = tuple(run for run in left if run not in begun)
            if rest:
                self._queue.appendleft(Unit(rest))
            self._deaths.update(run["run_id"] for run in begun)
            again = [run for run in begun if self._deaths[run["run_id"]] < _TRIES]
            self._queue.extend(Unit((run,), alone=True) for run in again)
        for run in begun:
            if run not in again:
                self._record_death(run, code)

    def _record_death(self, run: dict[str, Any], code: int) -> None:
        folder = RunDirectory(self._directory / run["run_id"])
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if -code == signal.SIGKILL:
            how += " (the system does that when memory runs out)"
        reason = f"the worker process {how}, {_TRIES} times; see {self._directory / 'worker.log'}"
        with suppress(RunBusyError), folder.locked():  # where another launch is at this run, it is alive
            if folder.state() in (*FINAL, "preempted"):
                return
            folder.write_failure(labels_of(self._sweep, run), folder.config(), reason, "killed")


def _ask(worker: subprocess.Popen[str], unit: Unit, workers: int) -> Iterator[dict[str, Any]]:
    """Gives a worker a unit and waits for how each of its runs ends; fewer where the worker dies."""
    assert worker.stdin and worker.stdout
    request = {"runs": unit.runs, "workers": workers, "alone": unit.alone}
    with suppress(BrokenPipeError):
        worker.stdin.write(json.dumps(request) + "\n")
        worker.stdin.flush()
        for _ in unit.runs:
            answer = worker.stdout.readline()
            if not answer:
                return
            yield json.loads(answer)


def _environment(slot: int, workers: int) -> dict[str, str]:
    """That of a worker: where there are several and several GPUs, each has its own, in turn."""
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    indices = gpus.split(",") if gpus else [path.name.removeprefix("nvidia") for path in sorted(_gpu_files())]
    if workers == 1 or len(indices) < 2:
        return dict(os.environ)
    return os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(indices[slot % len(indices) :: workers])}


def _gpu_files() -> list[Path]:
    return [path for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()]

"""Runs what is missing of a sweep in worker processes on this machine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from wmresearch.config import parse_run, yaml_text
from wmresearch.sweeps.store import missing
from wmresearch.training.interruption import StopRequest, stop_on_signal
from wmresearch.training.run_directory import FINAL, RunDirectory, RunLabels
from wmresearch.training.run_lock import RunBusyError

POLL_SECONDS = 0.5


class LocalLauncher:
    """`jobs` worker processes that take runs from one queue in plan order.

    A worker that dies (killed, out of memory, a crash in a library) has its run recorded as failed and is replaced.
    """

    def __init__(self, directory: Path, jobs: int) -> None:
        self._directory = directory
        self._queue = deque(missing(directory))
        self._jobs = min(jobs, len(self._queue))
        self._lock = threading.Lock()
        self._stop = StopRequest()
        self._workers: set[subprocess.Popen[str]] = set()

    def run(self, watch: Callable[[], None]) -> bool:
        """Trains until the queue is empty, calling `watch` twice a second. False where it was told to stop.

        SIGINT and SIGTERM are handed on to the workers: each saves its run and ends.
        """
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._jobs)]
        with stop_on_signal() as self._stop:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                watch()
                time.sleep(POLL_SECONDS)
                if self._stop.signal is not None:
                    for worker in list(self._workers):
                        worker.terminate()
        watch()
        return self._stop.signal is None

    def _next(self) -> dict[str, Any] | None:
        with self._lock:
            return self._queue.popleft() if self._queue and self._stop.signal is None else None

    def _work(self) -> None:
        run = self._next()
        while run is not None:
            run = self._feed(run)

    def _feed(self, run: dict[str, Any] | None) -> dict[str, Any] | None:
        """Starts one worker and gives it runs until the queue is empty or it ends; returns the run to go on with."""
        command = [sys.executable, "-m", "wmresearch.sweeps.worker", str(self._directory)]
        pipe = subprocess.PIPE
        with (
            (self._directory / "worker.log").open("a", encoding="utf-8") as log,
            subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True) as worker,
        ):
            self._workers.add(worker)
            while run is not None:
                state = _ask(worker, run)
                if state is None:
                    code = worker.wait()
                    if self._stop.signal is None:
                        self._record_death(run, code)
                run = self._next()
                if state in (None, "preempted"):  # this worker has ended
                    break
            self._workers.discard(worker)
            with suppress(BrokenPipeError):
                worker.stdin.close()  # type: ignore[union-attr]
        return run

    def _record_death(self, run: dict[str, Any], code: int) -> None:
        folder = RunDirectory(self._directory / run["run_id"])
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if -code == signal.SIGKILL:
            how += " (the system does that when memory runs out)"
        reason = f"the worker process {how}; see {self._directory / 'worker.log'}"
        with suppress(RunBusyError), folder.locked():  # where another launch is at this run, it is alive
            summary = folder.summary()
            if summary.get("state") in (*FINAL, "preempted"):
                return
            config = parse_run(yaml_text.read(folder.path / "config.yaml"), str(folder.path))
            labels = RunLabels(run["run_id"], summary.get("sweep"), run["arm"], run["role"], run["settings"])
            folder.write_failure(labels, config, reason)


def _ask(worker: subprocess.Popen[str], run: dict[str, Any]) -> str | None:
    """Gives a worker a run and waits for its end: the run's state, or None where the worker died."""
    assert worker.stdin and worker.stdout
    try:
        worker.stdin.write(json.dumps(run) + "\n")
        worker.stdin.flush()
    except BrokenPipeError:
        return None
    answer = worker.stdout.readline()
    return json.loads(answer)["state"] if answer else None

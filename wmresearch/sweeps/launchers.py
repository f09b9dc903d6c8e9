"""Runs what is missing of a sweep in worker processes on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wmresearch.config import parse_run, yaml_text
from wmresearch.sweeps.store import missing
from wmresearch.training.run_directory import RunDirectory, RunLabels

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
        self._stopping = False

    def run(self, watch: Callable[[], None]) -> bool:
        """Trains until the queue is empty, calling `watch` twice a second. False where it was interrupted."""
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._jobs)]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                watch()
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:  # the workers got the signal too: each saves its run and ends
            self._stopping = True
            for thread in threads:
                thread.join()
        watch()
        return not self._stopping

    def _next(self) -> dict[str, Any] | None:
        with self._lock:
            return self._queue.popleft() if self._queue and not self._stopping else None

    def _work(self) -> None:
        run = self._next()
        while run is not None:
            run = self._feed(run)

    def _feed(self, run: dict[str, Any] | None) -> dict[str, Any] | None:
        """Starts one worker and gives it runs until the queue is empty or it dies; returns the run to go on with."""
        log = (self._directory / "worker.log").open("a", encoding="utf-8")
        command = [sys.executable, "-m", "wmresearch.sweeps.worker", str(self._directory)]
        with (
            log,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as worker,
        ):
            assert worker.stdin and worker.stdout
            while run is not None:
                answer = ""
                try:
                    worker.stdin.write(json.dumps(run) + "\n")
                    worker.stdin.flush()
                    answer = worker.stdout.readline()
                except BrokenPipeError:
                    pass
                if not answer:
                    self._record_death(run, worker.wait())
                    return self._next()
                run = self._next()
                if json.loads(answer)["state"] == "preempted":  # the worker was told to stop, and has ended
                    return run
            worker.stdin.close()
        return None

    def _record_death(self, run: dict[str, Any], code: int) -> None:
        folder = RunDirectory(self._directory / run["run_id"])
        summary = folder.summary()
        if summary.get("state") in ("finished", "diverged", "preempted"):
            return
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        log = self._directory / "worker.log"
        reason = f"the worker process ended {how}; see {log}"
        config = parse_run(yaml_text.read(folder.path / "config.yaml"), str(folder.path))
        labels = RunLabels(run["run_id"], summary.get("sweep"), run["arm"], run["role"], run["settings"])
        kept = {key: value for key, value in summary.items() if key in _KEPT}
        folder.write_summary(labels, config, "failed", **{**kept, "reason": reason})


_KEPT = ("step", "train_loss", "corpus_digest", "parameters", "head_output_parameters", "flops_per_token")

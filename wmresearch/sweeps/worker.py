"""A process that trains cohorts one after another: each line on standard input is one, each line out says how one of
its runs ended.

    python -m wmresearch.sweeps.worker SWEEP_DIRECTORY

JAX starts once for many runs, and a cohort's program is compiled once. A run that kills the process takes with it no
more than those that are trained beside it, which are tried again.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wmresearch.training.failures import failure_of
from wmresearch.training.interruption import UNWAITED, StopRequest, stop_on_signal
from wmresearch.training.run_directory import RunDirectory
from wmresearch.training.run_lock import RunBusyError

if TYPE_CHECKING:
    from wmresearch.training.shared import Shared

Answer = Callable[[dict[str, Any]], None]


def main() -> None:
    directory = Path(sys.argv[1])
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints is no answer
    sweep = json.loads((directory / "sweep.json").read_text(encoding="utf-8"))["name"]
    writing = threading.Lock()

    def answer(what: dict[str, Any]) -> None:
        with writing:
            answers.write(json.dumps(what) + "\n")

    with stop_on_signal() as stop:
        try:
            for line in sys.stdin:
                request = json.loads(line)
                train_together(directory, sweep, request["runs"], answer, stop, request["workers"], request["alone"])
                if stop.signal is not None:
                    break
        except KeyboardInterrupt:
            os._exit(130)  # asked for twice: threads that train would be waited for
    if any(thread.name == UNWAITED for thread in threading.enumerate()):
        sys.stderr.flush()
        os._exit(0)  # all is written; what is compiled for nobody would be waited for


def train_together(
    directory: Path,
    sweep: str,
    runs: Sequence[dict[str, Any]],
    answer: Answer,
    stop: StopRequest,
    workers: int = 1,
    alone: bool = False,
) -> None:
    """Trains runs of one cohort, as many at a time as there are devices (or cores) and as fit, and says how each ended.

    `workers`: processes that share this machine. `alone`: one run at a time.
    """
    from wmresearch.sweeps.cohorts import batching_of, side_by_side
    from wmresearch.training.runtime import prepare_runtime
    from wmresearch.training.shared import Shared

    config = RunDirectory(directory / runs[0]["run_id"]).config()
    prepare_runtime(config)  # before anything asks for devices
    abreast = 1 if alone else side_by_side(config, len(runs), workers)
    batching = batching_of(config) if abreast > 1 else "map"
    groups = [runs] if batching == "map" else [runs[i : i + abreast] for i in range(0, len(runs), abreast)]
    for group in groups:
        _train_group(directory, sweep, group, answer, stop, Shared(len(runs), min(abreast, len(group)), batching))


def _train_group(
    directory: Path, sweep: str, runs: Sequence[dict[str, Any]], answer: Answer, stop: StopRequest, programs: Shared
) -> None:
    """Trains runs on as many threads as are side by side; on accelerators each thread has a device."""
    import jax

    import wmresearch.training.loop  # noqa: F401, before there are threads that would import it at once

    waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    for run in runs:
        waiting.put(run)
    devices = jax.local_devices() if programs.batching == "map" else jax.local_devices()[:1]

    def work(device: Any) -> None:
        with jax.default_device(device):
            while True:
                try:
                    run = waiting.get_nowait()
                except queue.Empty:
                    return
                answer(train_one(directory, sweep, run, stop, programs))
                if stop.signal is not None:
                    programs.close()

    if programs.side_by_side == 1:
        work(devices[0])
        return
    slots = [devices[index % len(devices)] for index in range(programs.side_by_side)]
    threads = [threading.Thread(target=work, args=(device,)) for device in slots]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    programs.close()


def train_one(
    directory: Path, sweep: str, run: dict[str, Any], stop: StopRequest, programs: Shared | None = None
) -> dict[str, Any]:
    """Trains a run and says how it ended."""
    from wmresearch.sweeps.store import labels_of
    from wmresearch.training.loop import reason_of, train  # JAX is imported by the first run, not at start

    folder = RunDirectory(directory / run["run_id"])
    said = {"run_id": run["run_id"]}
    labels, config = labels_of(sweep, run), folder.config()
    try:
        state = "preempted"
        if stop.signal is None:
            state = train(config, folder.path, labels, stop=stop, programs=programs)["state"]
    except RunBusyError:
        state = "busy"
    except Exception as error:  # whatever it is, the sweep goes on with the next run
        state = "failed"
        if folder.state() != "failed":  # it did not come as far as training
            folder.write_failure(labels, config, reason_of(error), failure_of(error), traceback.format_exc())
        said["failure"] = folder.summary()["failure"]
    finally:
        if programs is not None:
            programs.leave()
    return said | {"state": state}


if __name__ == "__main__":
    main()

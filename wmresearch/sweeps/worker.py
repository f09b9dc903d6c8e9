"""A process that trains runs one after another: each line on standard input is a run, each line out says how it ended.

    python -m wmresearch.sweeps.worker SWEEP_DIRECTORY

JAX starts once for many runs. A run that kills the process takes no other run with it.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, TextIO

from wmresearch.config import parse_run, yaml_text
from wmresearch.training.interruption import StopRequest, stop_on_signal
from wmresearch.training.run_directory import RunDirectory, RunLabels
from wmresearch.training.run_lock import RunBusyError


def main() -> None:
    directory = Path(sys.argv[1])
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints is no answer
    sweep = json.loads((directory / "sweep.json").read_text(encoding="utf-8"))["name"]
    with stop_on_signal() as stop:
        for line in sys.stdin:
            if not train_one(directory, sweep, json.loads(line), answers, stop):
                break


def train_one(directory: Path, sweep: str, run: dict[str, Any], answers: TextIO, stop: StopRequest) -> bool:
    """Trains a run and says how it ended. False where the worker was told to stop."""
    from wmresearch.training.loop import reason_of, train  # JAX is imported by the first run, not at start

    folder = RunDirectory(directory / run["run_id"])
    config = parse_run(yaml_text.read(folder.path / "config.yaml"), str(folder.path / "config.yaml"))
    labels = RunLabels(run["run_id"], sweep, run["arm"], run["role"], run["settings"])
    try:
        state = train(config, folder.path, labels, stop=stop)["state"]
    except RunBusyError:
        state = "busy"
    except Exception as error:  # whatever it is, the sweep goes on with the next run
        state = "failed"
        if folder.state() != "failed":  # it did not come as far as training
            folder.write_failure(labels, config, reason_of(error), traceback.format_exc())
    answers.write(json.dumps({"run_id": run["run_id"], "state": state}) + "\n")
    return state != "preempted"


if __name__ == "__main__":
    main()

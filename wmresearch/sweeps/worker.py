"""A process that trains runs one after another: each line on standard input is a run, each line out says how it ended.

    python -m wmresearch.sweeps.worker SWEEP_DIRECTORY

JAX starts once for many runs. A run that kills the process takes no other run with it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from wmresearch.config import parse_run, yaml_text
from wmresearch.training.run_directory import RunBusyError, RunDirectory, RunLabels


def main() -> None:
    directory = Path(sys.argv[1])
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints is no answer
    sweep = json.loads((directory / "sweep.json").read_text(encoding="utf-8"))["name"]
    for line in sys.stdin:
        if not _train(directory, sweep, json.loads(line), answers):
            break


def _train(directory: Path, sweep: str, run: dict[str, Any], answers: TextIO) -> bool:
    from wmresearch.training.loop import train  # JAX is imported by the first run, not at start

    folder = RunDirectory(directory / run["run_id"])
    config = parse_run(yaml_text.read(folder.path / "config.yaml"), str(folder.path / "config.yaml"))
    labels = RunLabels(run["run_id"], sweep, run["arm"], run["role"], run["settings"])
    try:
        state = train(config, folder.path, labels)["state"]
    except RunBusyError:
        state = "busy"
    except Exception:  # its class and reason are in the run's directory; the sweep goes on with the next run
        state = "failed"
    answers.write(json.dumps({"run_id": run["run_id"], "state": state}) + "\n")
    return state != "preempted"


if __name__ == "__main__":
    main()

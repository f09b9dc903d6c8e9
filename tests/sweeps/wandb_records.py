"""What W&B has of a run offline, read by wandb's own program."""

import functools
import json
import subprocess
from pathlib import Path
from typing import Any

from wandb.util import get_core_path


@functools.cache
def _lines(file: Path, written: float) -> list[dict[str, Any]]:
    command = [get_core_path(), "leet", "inspect", "--no-observability", "--json"]
    command += ["--run-file", str(file), str(file.parent.parent)]
    read = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in read.splitlines()]


def record_file(run: Path) -> Path:
    (file,) = (run / "wandb").glob("offline-run-*/*.wandb")
    return file


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    """Those of a kind, of the one record that a run's folder has."""
    file = record_file(run)
    return [line[kind] for line in _lines(file, file.stat().st_mtime) if line["type"] == kind]


def rows(run: Path) -> list[dict[str, Any]]:
    """The logged metrics, without what wandb adds."""
    found = [record["item"] for record in records(run, "history")]
    return [{key: value for key, value in row.items() if not key.startswith("_")} for row in found]


def last_summary(run: Path) -> dict[str, Any]:
    """What a run's summary is in the end."""
    summary: dict[str, Any] = {}
    for record in records(run, "summary"):
        summary |= record.get("update", {})
    return {key: value for key, value in summary.items() if not key.startswith("_")}

"""A run's directory: the truth about the run. W&B mirrors it, tables read only it.

config.yaml     the whole config            metrics.jsonl   functions of config and step only
status.json     state and heartbeat         timing.jsonl    wall-clock figures
summary.json    the result                  manifest.json   what it was made from
checkpoints/    parameters and optimizer state; checkpoint_sums/ of their files; damaged_checkpoints/ set aside
diagnostics.jsonl   statistics of each head's map at each evaluation, and before the first step
ranks.jsonl     the rank of each head after each cut, where heads find their ranks
spectra/STEP.npz    its singular values `[layers, heads, r]`, and the heads' cosines `[layers, heads, heads]`
tasks.json      recall and induction of the finished model
head_output.py  the file of a head output of the user's own, where the run has one
error.txt       the traceback of what made the run fail, where it did
"""

from __future__ import annotations

import io
import itertools
import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from wmresearch.config import ConfigError, Problem, RunConfig, parse_run, yaml_text
from wmresearch.config.custom_file import read_code
from wmresearch.config.head_output import CustomConfig
from wmresearch.training.failures import Failure
from wmresearch.training.files import CLOSED, FULL, json_line, read_json, write_atomically, write_json, writing
from wmresearch.training.rows import ARRAYS
from wmresearch.training.run_lock import RunBusyError, hold

State = Literal["pending", "running", "finished", "failed", "diverged", "preempted"]
FINAL: tuple[State, ...] = ("finished", "diverged")
"""States in which there is nothing left to do."""

_SUMMARY_KEYS = (
    "run_id", "sweep", "arm", "role", "settings", "seed", "state", "reason", "failure", "step", "train_loss",
    "validation_loss", "best_validation_loss", "test_loss", "bits_per_byte", "recall_accuracy", "induction_accuracy",
    "induction_gain", "learning_rate", "corpus_digest", "parameters", "head_output_parameters", "head_output_nonzeros",
    "total_rank", "masked_dense", "flops_per_token", "training_flops", "tokens_per_second", "wall_seconds",
)  # fmt: skip

_LOGS = ("metrics.jsonl", "diagnostics.jsonl", "ranks.jsonl")

_KEPT_ON_FAILURE = (
    "step", "train_loss", "corpus_digest", "parameters", "head_output_parameters", "head_output_nonzeros", "total_rank",
    "masked_dense", "flops_per_token", "wall_seconds",
)  # fmt: skip


def _stop_this_process() -> None:
    """As if it were told to: another machine has taken it for dead and goes on with its run."""
    signal.raise_signal(signal.SIGTERM)


@dataclass(frozen=True)
class RunLabels:
    """What a run is called: its id, and its place in a sweep."""

    run_id: str
    sweep: str | None = None
    arm: str | None = None
    role: Literal["tune", "report"] = "report"
    settings: Mapping[str, Any] = field(default_factory=dict)


class RunDirectory:
    """Reads and writes the files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the directory, creating it where it is missing.

        Raises:
            RunBusyError: another process holds it. The lock of a process that died is free.
            ConfigError: there can be no such folder.
            OSError: the disk is full, or this user may not write there.
        """
        with ExitStack() as held:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                held.enter_context(hold(self.path, _stop_this_process))
            except OSError as error:
                if error.errno in (*FULL, *CLOSED):
                    raise
                problem = Problem(str(self.path), "", "", "a folder that can be made and written", error.strerror or "")
                raise ConfigError([problem]) from None
            yield

    def set_aside(self) -> Path | None:
        """Moves the folder beside itself, as NAME.old-1 or the next that is free; None where there is nothing.

        Raises:
            RunBusyError: a process holds it.
        """
        if not self.path.exists():
            return None
        with self.locked():
            names = (self.path.with_name(f"{self.path.name}.old-{number}") for number in itertools.count(1))
            aside = next(path for path in names if not path.exists())
        return self.path.rename(aside)

    def is_busy(self) -> bool:
        """Whether a process is at work in it now."""
        try:
            with self.locked():
                return False
        except RunBusyError:
            return True

    def is_held(self) -> bool:
        """Whether a process may hold it, as far as the folder says: one that it was, or is, held in."""
        return (self.path / ".lock").exists()

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def status(self) -> dict[str, Any] | None:
        return read_json(self.path / "status.json")

    def summary(self) -> dict[str, Any]:
        return read_json(self.path / "summary.json") or {}

    def state(self) -> State:
        return self.summary().get("state", "pending")

    def is_new(self) -> bool:
        """Whether a run in it would start at its first step."""
        return not self.saved_steps() and self.state() not in FINAL

    def saved_steps(self) -> list[int]:
        """The steps that have a checkpoint; the folder is looked at, and left as it is."""
        folders = self.checkpoints.iterdir() if self.checkpoints.is_dir() else ()
        return sorted(int(folder.name) for folder in folders if folder.name.isdigit())

    def write_config(self, config: RunConfig) -> None:
        """A Python file that the config names is kept too, and named in its place: an edit of it is another run's."""
        chosen = config.model.head_output
        if isinstance(chosen, CustomConfig):
            copy = self.path / "head_output.py"
            write_atomically(copy, read_code(chosen))
            kept = chosen.model_copy(update={"file": str(copy)})
            config = config.model_copy(update={"model": config.model.model_copy(update={"head_output": kept})})
        write_atomically(self.config_file, yaml_text.write(config.model_dump(mode="json")))

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    def config(self) -> RunConfig:
        """The whole config that the run was laid out with.

        Raises:
            ConfigError: it is not there, or was written by another version.
        """
        return parse_run(yaml_text.read(self.config_file), str(self.config_file))

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        write_json(self.path / "manifest.json", manifest)

    def write_status(self, state: State, **figures: Any) -> None:
        """State and figures with a heartbeat, so that a reader can tell a slow run from a dead one."""
        process = f"process {os.getpid()} on {socket.gethostname()}"
        write_json(self.path / "status.json", {"state": state, "heartbeat": time.time(), "process": process, **figures})

    def write_summary(self, labels: RunLabels, config: RunConfig, state: State, **figures: Any) -> dict[str, Any]:
        """Writes summary.json: every key is there, null where nothing is known yet. Returns what was written."""
        known = {
            "run_id": labels.run_id,
            "sweep": labels.sweep,
            "arm": labels.arm,
            "role": labels.role,
            "settings": dict(labels.settings),
            "seed": config.seed,
            "state": state,
            "learning_rate": config.optimizer.learning_rate,
            **figures,
        }
        unknown = known.keys() - set(_SUMMARY_KEYS)
        assert not unknown, unknown
        summary = {key: known.get(key) for key in _SUMMARY_KEYS}
        write_json(self.path / "summary.json", summary)
        return summary

    def write_failure(
        self, labels: RunLabels, config: RunConfig, reason: str, failure: Failure, details: str | None = None
    ) -> None:
        """Marks a run as failed from outside: what its summary knows of model, corpus and step is kept."""
        old = self.summary()
        kept = {key: old[key] for key in _KEPT_ON_FAILURE if key in old}
        if details is not None:
            self.write_error(details)
        self.write_summary(labels, config, "failed", **kept, reason=reason, failure=failure)

    def write_tasks(self, scores: Mapping[str, Any]) -> None:
        write_json(self.path / "tasks.json", scores)

    def write_error(self, details: str) -> None:
        write_atomically(self.path / "error.txt", details)

    def append_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._append("metrics.jsonl", {"step": step, **metrics})

    def append_timing(self, step: int, figures: Mapping[str, float]) -> None:
        self._append("timing.jsonl", {"step": step, **figures})

    def append_diagnostics(self, step: int, found: Mapping[str, np.ndarray]) -> None:
        """Statistics by layer and head as one line, singular values and cosines as one file of arrays."""
        statistics = {name: values.tolist() for name, values in found.items() if name not in ARRAYS}
        self._append("diagnostics.jsonl", {"step": step, **statistics})
        if arrays := {name: found[name] for name in ARRAYS if name in found}:
            path, data = self._spectra_file(step), io.BytesIO()
            path.parent.mkdir(exist_ok=True)
            np.savez(data, **arrays)  # type: ignore[arg-type]
            write_atomically(path, data.getvalue())

    def spectra(self, step: int) -> dict[str, np.ndarray]:
        """The array file of a step; nothing where there is none."""
        path = self._spectra_file(step)
        if not path.exists():
            return {}
        with np.load(path) as arrays:
            return dict(arrays)

    def _spectra_file(self, step: int) -> Path:
        return self.path / "spectra" / f"{step:08d}.npz"

    def diagnostics(self) -> list[dict[str, Any]]:
        """The lines of diagnostics.jsonl."""
        return self._lines("diagnostics.jsonl")

    def append_ranks(self, line: Mapping[str, Any]) -> None:
        """The rank of each key/value head of each layer after the cut of a step, and what the model costs then."""
        self._append("ranks.jsonl", line)

    def ranks(self) -> list[dict[str, Any]]:
        """The lines of ranks.jsonl."""
        return self._lines("ranks.jsonl")

    def _append(self, name: str, value: Mapping[str, Any]) -> None:
        with writing(self.path / name), (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json_line(value))

    def lines(self) -> dict[str, int]:
        """How many whole lines each log has that holds what follows from config and step."""
        return {name: len(self._lines(name)) for name in _LOGS if (self.path / name).exists()}

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl up to one that was cut off or is none."""
        return self._lines("metrics.jsonl")

    def timing(self) -> list[dict[str, Any]]:
        """The lines of timing.jsonl."""
        return self._lines("timing.jsonl")

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.path / name
        if not path.exists():
            return []
        lines = []
        for line in path.read_bytes().split(b"\n")[:-1]:
            try:
                lines.append(json.loads(line))
            except ValueError:  # what a machine that lost its power left may be anything
                break
        return lines

    def rewind(self, step: int) -> None:
        """Cuts what is written by step back to a step: what came after will be written again.

        A run that starts at step 0 writes that one's diagnostics again too.
        """
        for path in (self.path / "spectra").glob("*.npz"):
            if int(path.stem) > step or step == 0:
                path.unlink()
        for name in ("timing.jsonl", *_LOGS):
            kept = [line for line in self._lines(name) if line["step"] <= step and step > 0]
            if kept or (self.path / name).exists():
                write_atomically(self.path / name, "".join(map(json_line, kept)))

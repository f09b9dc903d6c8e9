"""What a tracker is told about a run: as it trains, and from its directory when it goes on or records are lost."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wmresearch.config import RunConfig
from wmresearch.config.training import TrainingConfig
from wmresearch.head_output import kind_of
from wmresearch.training.rows import layer_means, ranks_row
from wmresearch.training.run_directory import RunDirectory, RunLabels
from wmresearch.training.trackers import RunIdentity, Tracker

MOST_IMAGES = 20
"""Of one run's spectra, besides those before the first and after the last step."""


def identity_of(config: RunConfig, labels: RunLabels, directory: RunDirectory) -> RunIdentity:
    """What a run is called, and what it was asked for."""
    kind = kind_of(config.model.head_output)
    return RunIdentity(
        run_id=labels.run_id,
        name=f"{labels.arm or labels.run_id} · seed {config.seed}",
        group=labels.sweep,
        job_type=labels.role,
        tags=tuple(dict.fromkeys(tag for tag in (labels.sweep, labels.arm, kind) if tag)),
        notes=f"Again: {again(directory.path)}",
        config=config.model_dump(mode="json") | {"arm": labels.arm, "settings": dict(labels.settings)},
    )


def again(directory: Path) -> str:
    """The command that trains a run once more, beside it."""
    shown = directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory
    return shlex.join(["wm", "train", str(shown / "config.yaml"), "--dir", str(shown.with_name(shown.name + "-again"))])


def tell_again(tracker: Tracker, config: RunConfig, directory: RunDirectory) -> None:
    """All that the run's logs hold so far."""
    for line in (*directory.metrics(), *directory.timing()):
        tracker.log(line["step"], {name: _number(value) for name, value in line.items() if name != "step"})
    for line in directory.diagnostics():
        tell_diagnostics(tracker, config, line["step"], line | directory.spectra(line["step"]))
    for line in directory.ranks():
        tell_ranks(tracker, line)


def _number(value: float | None) -> float:
    """Logs hold null for what is no number."""
    return math.nan if value is None else value


def tell_diagnostics(tracker: Tracker, config: RunConfig, step: int, found: Mapping[str, Any]) -> None:
    """The heads' maps were measured after a step: means over heads, and at some steps a picture of the spectra."""
    tracker.log(step, layer_means(found))
    if "singular_values" in found and is_drawn(config.training, step):
        tracker.spectra(step, found["singular_values"])


def tell_ranks(tracker: Tracker, line: Mapping[str, Any]) -> None:
    """The heads were cut after a step."""
    tracker.log(line["step"], ranks_row(line))


def is_drawn(training: TrainingConfig, step: int) -> bool:
    """Whether the evaluation after a step has a picture: evenly spaced ones do, at most 20, and the first and last."""
    if step in (0, training.steps) or training.evaluate_every is None:
        return True
    evaluations = training.steps // training.evaluate_every
    return step // training.evaluate_every % -(-evaluations // MOST_IMAGES) == 0

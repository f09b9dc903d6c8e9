"""When runs come to the final validation loss of the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wmresearch.config import yaml_text
from wmresearch.reports.records import Record
from wmresearch.reports.rows import Reach
from wmresearch.training.run_directory import RunDirectory


def reach(directory: Path, group: Sequence[Record], baseline: Sequence[Record]) -> Reach:
    """Steps and training FLOPs of each finished run to the last validation loss of the baseline's with its seed."""
    targets = {run.planned.seed: run.summary.validation_loss for run in baseline if run.finished and run.summary}
    steps: list[float | None] = []
    flops: list[float | None] = []
    for record in group:
        target = targets.get(record.planned.seed)
        if record.finished and target is not None:
            run = RunDirectory(directory / record.planned.run_id)
            losses = [(line["step"], line["validation_loss"]) for line in run.metrics() if "validation_loss" in line]
            steps.append(steps_to(target, losses))
            flops.append(None if steps[-1] is None else _flops(run, record, steps[-1]))
    return Reach(len(steps), sum(found is not None for found in steps), _mean(steps), _mean(flops))


def _mean(values: Sequence[float | None]) -> float | None:
    """None where one is missing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def steps_to(target: float, losses: Sequence[tuple[int, float]]) -> float | None:
    """The first step at which the loss is at most the target, linear between evaluations.

    That of the first evaluation where it is there already; None where it never is.
    """
    before: tuple[int, float] | None = None
    for step, loss in losses:
        if loss <= target:
            if before is None:
                return float(step)
            last_step, last_loss = before
            return last_step + (step - last_step) * (last_loss - target) / (last_loss - loss)
        before = step, loss
    return None


def _flops(run: RunDirectory, record: Record, steps: float) -> float | None:
    """Training FLOPs of a run's first steps: of all steps they are a share, unless cuts made later ones cheaper."""
    summary, cuts = record.summary, run.ranks()
    if summary is None or not summary.training_flops or not summary.step:
        return None
    if not cuts:
        return summary.training_flops * steps / summary.step
    config = yaml_text.read(run.path / "config.yaml")
    tokens = config["data"]["batch_size"] * config["model"]["context"]
    starts = [cut["step"] for cut in cuts]
    lengths = [end - start for start, end in zip(starts, [*starts[1:], summary.step], strict=True)]
    later = sum(cut["flops_per_token"] * length for cut, length in zip(cuts, lengths, strict=True))
    first = (summary.training_flops / tokens - later) / starts[0]
    costs = [first, *(cut["flops_per_token"] for cut in cuts)]
    spans = zip(costs, [0, *starts], [*starts, summary.step], strict=True)
    return float(tokens * sum(cost * max(0.0, min(end, steps) - start) for cost, start, end in spans))

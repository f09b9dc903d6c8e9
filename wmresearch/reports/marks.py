"""What a reader has to know of a row before believing it, and which row has the lowest loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from wmresearch.reports.manifest import environment
from wmresearch.reports.records import Record
from wmresearch.reports.rows import Delta, Loss, Row
from wmresearch.reports.statistics import CONFIDENCE, paired_difference
from wmresearch.reports.together import agreed, different, found_ranks, paired, values


def marked(rows: Sequence[Row], groups: Sequence[Sequence[Record]], loss: Loss) -> list[Row]:
    """The rows with the lowest mean marked, and those that the same seeds do not tell apart from it.

    Rows in which a seed diverged or failed have no part in this: their means are over the seeds that survived.
    """
    finished = [[record for record in group if record.finished] for group in groups]
    means = [getattr(row, loss).mean if row.finished == row.planned > 1 else None for row in rows]
    known = [mean for mean in means if mean is not None]
    if len(known) < 2:
        return list(rows)
    best = means.index(min(known))

    def mark(index: int) -> Literal["lowest", "not told apart"] | None:
        if index == best or means[index] is None:
            return "lowest" if index == best else None
        found = paired_difference(*paired(finished[index], finished[best], loss))
        return "not told apart" if (found.p is not None and found.p >= 1 - CONFIDENCE) or found.mean == 0 else None

    return [replace(row, mark=mark(index)) for index, row in enumerate(rows)]


_FACTS = {
    "step": "steps",
    "learning_rate": "learning rates",
    "parameters": "parameters",
    "head_output_parameters": "head output parameters",
    "flops_per_token": "FLOPs",
}
_SIZES = ("parameters", "head_output_parameters", "flops_per_token")
"""Key of a summary on which the finished runs of a row have to agree → what it is called in a flag."""


def flags(group: Sequence[Record], baseline: Sequence[Record]) -> Iterator[str]:
    """What a reader has to know of a row before believing it."""
    states = {record.state for record in group}
    finished = [record for record in group if record.finished]
    counted = [*finished, *(record for record in baseline if record.finished)]
    yield from (name for name in ("diverged", "failed") if name in states)
    if states - {"finished", "diverged", "failed"}:
        yield "incomplete"
    if any(record.state == "diverged" for record in baseline):
        yield "baseline diverged"
    facts = {key: name for key, name in _FACTS.items() if not (key in _SIZES and found_ranks(group))}
    yield from (f"mixed {name}" for key, name in facts.items() if finished and len(different(group, key)) > 1)
    if agreed(group, "masked_dense"):
        yield "masked dense: saves compute: no"
    for key in ("test_loss", "bits_per_byte", "induction_accuracy"):
        if 0 < len(values(finished, key)) < len(finished):
            yield f"{key.replace('_', ' ')} incomplete"
    yield from (f"mixed {name}" for name, values in environment(counted).items() if len(values) > 1)


def delta_flags(delta: Delta | None, n: int) -> Iterator[str]:
    if delta is not None and delta.n < n:
        yield "unpaired"
    if delta is not None and delta.n > 1 and delta.low == delta.high:
        yield "no spread"


def flag_shared_runs(rows: Sequence[Row], groups: Sequence[Sequence[Record]]) -> list[Row]:
    """Two arms that come to the same config share their runs: not independent rows, which has to be said."""
    first: dict[str, str] = {}
    flagged = []
    for row, group in zip(rows, groups, strict=True):
        others = dict.fromkeys(first[r.planned.run_id] for r in group if r.planned.run_id in first)
        flags = (*row.flags, *(f"same runs as {arm}" for arm in others))
        flagged.append(replace(row, flags=flags))
        for record in group:
            first.setdefault(record.planned.run_id, record.planned.arm)
    return flagged

"""Figures of a sweep's training: learning curves, and what the learning rate does."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from wmresearch.reports.curves import Band, thinned
from wmresearch.reports.evidence import Evidence, Group, place
from wmresearch.reports.figure_parts import CannotDrawError, Drawing, Mark, chosen, column, legend, mark, plain
from wmresearch.reports.records import Record
from wmresearch.reports.statistics import mean_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 400
_WINDOWS = 25
"""A training loss is of one batch: it is smoothed over a 25th of the run."""
_MARKS = 8
"""Markers along a line."""
LOSSES = {"validation_loss": "validation loss (nats/token)", "train_loss": "training loss (nats/token)"}


def learning_curves(evidence: Evidence, metric: str) -> Drawing:
    """Mean and t interval over seeds of a loss at each step."""
    drawn, note = chosen([group for group in evidence.groups if group.counted], evidence.baseline)
    lengths = [len(run.curves[metric].steps) for group in drawn for run in group.counted if metric in run.curves]
    window = max(1, max(lengths, default=0) // _WINDOWS) if metric == "train_loss" else 1
    window += 1 - window % 2
    bands = [(group, found) for group in drawn if (found := group.band(metric, window)) is not None]
    if not bands or all(len(found.steps) < 2 for _, found in bands):
        raise CannotDrawError(f"no run has logged {metric} at two steps")
    figure, axes = column(2.5)
    panel = axes[0, 0]
    for group, found in bands:
        draw_band(panel, found, mark(group.place), plain(group.label))
    panel.set_ylim(*_window([found for _, found in bands]))
    panel.set_xlabel("step")
    panel.set_ylabel(LOSSES[metric])
    panel.margins(x=0.01)
    legend(figure, panel)
    parts = [_about([group for group, _ in bands])]
    parts += [f"Each run smoothed over {window} logged steps."] if window > 1 else []
    return Drawing(figure, " ".join(filter(None, [*parts, note])))


def _about(groups: list[Group]) -> str:
    counts = sorted({len(group.counted) for group in groups})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    if counts[-1] == 1:
        return "One seed each: no interval."
    return f"Mean over {seeds} seeds; band: 95 % t interval."


def draw_band(panel: Axes, found: Band, look: Mark, label: str) -> None:
    """A mean with markers here and there, and its interval as a shade."""
    kept = thinned(len(found.steps), _POINTS)
    steps = found.steps[kept]
    every = max(1, len(kept) // _MARKS)
    panel.plot(steps, found.mean[kept], markevery=every, label=label, **look.line)
    if found.n > 1:
        panel.fill_between(steps, found.low[kept], found.high[kept], color=look.colour, alpha=0.16, linewidth=0)


def _window(bands: list[Band]) -> tuple[float, float]:
    """Where the curves end and how they come there; the fall of the first steps runs out at the top."""
    low = min(float(found.mean.min()) for found in bands)
    late = [found.mean[found.steps >= 0.1 * found.steps[-1]] for found in bands]
    high = max(float(values.max()) for values in late if len(values))
    room = 0.06 * (high - low or abs(high) or 1.0)
    return low - room, high + room


def learning_rate_sensitivity(evidence: Evidence) -> Drawing:
    """Mean validation loss of each arm at each learning rate; runs that diverged at the top."""
    found = _by_rate(evidence)
    several = {arm: rates for arm, rates in found.items() if len(rates) > 1}
    if not several:
        raise CannotDrawError("no arm was run at several learning rates")
    arms = sorted(several, key=evidence.sweep.plan.arms.index)
    figure, axes = column(2.5)
    panel = axes[0, 0]
    tops: list[float] = []
    for arm in arms:
        look = mark(place(evidence.sweep, arm))
        rates = sorted(rate for rate, records in several[arm].items() if _losses(records))
        estimates = [mean_interval(_losses(several[arm][rate])) for rate in rates]
        means = np.array([estimate.mean for estimate in estimates], float)
        tops += list(means)
        panel.plot(rates, means, label=plain(arm), **look.line)
        if any(estimate.low is not None for estimate in estimates):
            low, high = (np.array([getattr(e, part) for e in estimates], float) for part in ("low", "high"))
            panel.fill_between(rates, low, high, color=look.colour, alpha=0.16, linewidth=0)
    if not tops:
        raise CannotDrawError("no run at several learning rates has finished")
    diverged = [(rate, arm) for arm in arms for rate, group in several[arm].items() if _diverged(group)]
    if diverged:
        panel.plot(
            [rate for rate, _ in diverged], [1.0] * len(diverged), "x", color="0.3", label="diverged",
            transform=panel.get_xaxis_transform(), clip_on=False,
        )  # fmt: skip
    panel.set_xscale("log")
    panel.set_xlabel("learning rate")
    panel.set_ylabel(LOSSES["validation_loss"])
    legend(figure, panel)
    return Drawing(
        figure,
        "Mean over seeds at each learning rate, of tuning too; band: 95 % t interval. × at the top: a run diverged.",
    )


def _by_rate(evidence: Evidence) -> dict[str, dict[float, list[Record]]]:
    """Arm → learning rate → its runs, those that only served to choose it among them."""
    reported = [run.record for _, run in evidence.runs()]
    found: dict[str, dict[float, dict[str, Record]]] = defaultdict(lambda: defaultdict(dict))
    for record in [*reported, *evidence.others]:
        rate = record.summary.learning_rate if record.summary else None
        if rate and rate > 0:
            found[record.planned.arm][rate][record.planned.run_id] = record
    return {arm: {rate: list(runs.values()) for rate, runs in rates.items()} for arm, rates in found.items()}


def _losses(records: list[Record]) -> list[float]:
    losses = [record.summary.validation_loss for record in records if record.finished and record.summary]
    return [loss for loss in losses if loss is not None]


def _diverged(records: list[Record]) -> bool:
    return any(record.state == "diverged" for record in records)

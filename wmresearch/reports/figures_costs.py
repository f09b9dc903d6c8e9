"""Figures of what a loss costs: one point a row of the table, and the front that no other row beats."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from wmresearch.reports.evidence import Evidence, Group
from wmresearch.reports.figure_parts import (
    MOST_MARKS,
    CannotDrawError,
    Drawing,
    column,
    legend,
    legend_lines,
    mark,
    plain,
    spread_ticks,
    unit,
)

COSTS: dict[str, tuple[str, Callable[[Group], float | None]]] = {
    "parameters": ("parameters", lambda group: group.row.parameters),
    "head_output_parameters": ("head outputs' parameters", lambda group: group.row.head_output_parameters),
    "nonzeros": ("head outputs' non-zero parameters", lambda group: group.row.head_output_nonzeros),
    "training_flops": ("FLOPs of the training", lambda group: group.row.training_flops),
    "total_rank": ("total rank of all heads", lambda group: group.row.total_rank),
    "effective_rank": ("effective rank of a head's map", lambda group: mean_rank(group)),
}
"""Name of the cost → what its axis says, and its value in a row."""


def mean_rank(group: Group) -> float | None:
    """Mean over heads, layers and seeds at the last measurement."""
    values = [run.heads.values["effective_rank"][-1] for run in group.with_heads() if run.heads]
    finite = [float(value.mean()) for value in values if np.isfinite(value).all()]
    return sum(finite) / len(finite) if finite else None


def loss_against_cost(evidence: Evidence, cost: str) -> Drawing:
    """Mean loss with its interval against a cost; the Pareto front as a line."""
    title, value = COSTS[cost]
    known = [(group, value(group)) for group in evidence.groups if group.compared.mean is not None]
    points = [(group, float(x)) for group, x in known if x is not None and x > 0]
    if cost == "nonzeros" and all(group.row.head_output_parameters == x for group, x in points):
        raise CannotDrawError("no row holds entries at zero")
    if len({x for _, x in points}) < 2:
        raise CannotDrawError(f"fewer than two different values of: {title}" if points else f"unknown: {title}")
    figure, axes = column(_HEIGHT)
    panel = axes[0, 0]
    scale, prefix = unit([x for _, x in points])
    named: set[str] = set()
    for group, x in points:
        found, look = group.compared, mark(group.place)
        half = None if found.low is None or found.high is None else (found.high - found.low) / 2
        label = plain(group.row.arm)
        panel.errorbar(
            x / scale, group.loss, yerr=half, color=look.colour, marker=look.marker, linestyle="", capsize=2,
            elinewidth=0.8, label="_" + label if label in named else label,
        )  # fmt: skip
        named.add(label)
    front = pareto([(x, group.loss) for group, x in points])
    if len(front) > 1:
        xs, losses = zip(*front, strict=True)
        panel.plot(
            np.array(xs) / scale, losses, color="0.45", linewidth=0.8, drawstyle="steps-post", zorder=1,
            label="Pareto front",
        )  # fmt: skip
    values = [x / scale for _, x in points]
    if max(values) / min(values) > 3:
        panel.set_xscale("log")
        spread_ticks(panel.xaxis, values)
    panel.set_xlabel(f"{title} ({prefix})" if prefix else title)
    panel.set_ylabel(f"{evidence.loss} (nats/token)")
    caption = f"Mean over seeds of each row of the table, with its 95 % t interval. {_FRONT}"
    if len(named) <= MOST_MARKS:
        figure.set_figheight(_HEIGHT + _LINE * max(0, legend_lines(sorted(named)) - _LINES))
        legend(figure, panel)
    else:
        caption += f" {len(named)} arms are more than a legend can tell apart: the table names them."
    return Drawing(figure, caption)


_HEIGHT, _LINE, _LINES = 2.5, 0.18, 4
"""Inches of a figure and of a legend's line, and lines for which there is room in the figure."""
_FRONT = "Line: rows than which no other has both a lower mean loss and a lower cost."


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those (cost, loss) that no other point beats in one without losing in the other, by rising cost."""
    front: list[tuple[float, float]] = []
    for cost, loss in sorted(points):
        if not front or loss < front[-1][1]:
            front.append((cost, loss))
    return front

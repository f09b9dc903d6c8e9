"""What the figures of a sweep have in common: a column's width, marks that differ without colour, notes beneath."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wmresearch.reports.evidence import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN = 3.4
"""Inches: the width of one of two columns of a page."""
MOST_GROUPS = 8
"""Lines that a figure of a column can carry."""
MOST_MARKS = 30
"""Marks that can be told apart."""
STYLE: Any = {
    "font.size": 7.5,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.3,
    "grid.color": "0.85",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "svg.fonttype": "path",
    "svg.hashsalt": "wmresearch",
}

BASELINE = "#000000"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Told apart by colour-blind readers (Okabe and Ito 2008, without yellow, which is too light for lines)."""
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (8, 2)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


class CannotDrawError(Exception):
    """The data do not allow a figure. Says what is missing."""


@dataclass(frozen=True)
class Drawing:
    """A figure, and what a caption has to say about it."""

    figure: Figure
    caption: str


@dataclass(frozen=True)
class Mark:
    """How a row is drawn: no two of the first MOST_MARKS look alike in grey."""

    colour: str
    dash: Any
    marker: str

    @property
    def line(self) -> dict[str, Any]:
        """For `Axes.plot`."""
        return {"color": self.colour, "linestyle": self.dash, "marker": self.marker}


def mark(place: int) -> Mark:
    """Of the arm at a place, 0 the baseline: the same in all figures and on the page."""
    colour = COLOURS[(place - 1) % len(COLOURS)] if place else BASELINE
    return Mark(colour, _DASHES[place % len(_DASHES)], _MARKERS[place % len(_MARKERS)])


def chosen(groups: Sequence[Group], baseline: str) -> tuple[list[Group], str]:
    """At most as many rows as a figure carries, in the plan's order: the baseline's best and the best of the others.

    Where a grid is varied, each arm at the setting with the lowest mean loss.
    """
    notes = []
    best: dict[int, Group] = {}
    for group in groups:
        if group.arm not in best or group.loss < best[group.arm].loss:
            best[group.arm] = group
    if len(best) < len(groups):
        notes.append("Each arm at the setting of the grid with the lowest mean loss over its seeds.")
    found = sorted(best.values(), key=lambda group: (group.row.arm != baseline, group.loss))
    if len(found) > MOST_GROUPS:
        notes.append(f"The baseline and the best {MOST_GROUPS - 1} of {len(found) - 1} other arms.")
    return sorted(found[:MOST_GROUPS], key=lambda group: group.arm), " ".join(notes)


def column(height: float, rows: int = 1, columns: int = 1, **more: Any) -> tuple[Figure, Any]:
    """A figure of a column's width, and its axes as an array `[rows, columns]`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(COLUMN, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **more)


def outer_labels(axes: Any, used: int, x: str, y: str) -> None:
    """Labels under the panels that have none below, and at the left."""
    columns = axes.shape[1]
    for panel in axes.flat[max(0, used - columns) : used]:
        panel.set_xlabel(x)
        panel.xaxis.set_tick_params(labelbottom=True)
    for panel in axes[:, 0]:
        panel.set_ylabel(y)


def legend(figure: Figure, axes: Axes, columns: int | None = None) -> None:
    """Beneath the panels, each handle once; nothing where there is only one."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) < 2:
        return
    columns = columns or _legend_columns(labels)
    figure.legend(handles, [plain(label, 44) for label in labels], loc="outside lower center", ncols=columns)


def legend_lines(labels: Sequence[str]) -> int:
    """How many lines a legend of these has."""
    return math.ceil(len(labels) / _legend_columns(labels))


def _legend_columns(labels: Sequence[str]) -> int:
    return max(1, min(len(labels), int(COLUMN * 20 / (max(map(len, labels)) + 9))))


def plain(text: str, most: int = 60) -> str:
    """A name as matplotlib shall print it: no formula, on one line, not too long."""
    line = "".join(c for c in " ".join(text.split()) if c.isprintable()).replace("$", r"\$")
    line = line if len(line) <= most else line[: most - 1] + "…"
    return line.replace("_", "\N{LOW LINE}", 1) if line.startswith("_") else line


def unit(values: Sequence[float]) -> tuple[float, str]:
    """A power of 1000 to divide numbers by, and its prefix."""
    largest = max((abs(value) for value in values), default=0.0)
    power = min(max(int(math.floor(math.log10(largest)) // 3), 0), 6) if largest > 0 else 0
    return 1000.0**power, ("", "k", "M", "G", "T", "P", "E")[power]


def spread_ticks(axis: Any, values: Sequence[float]) -> None:
    """Readable ticks on a logarithmic axis that spans less than a decade or two."""
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    low, high = min(values), max(values)
    if high / low < 30:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0) if high / low > 3 else tuple(np.arange(1.0, 10.0))))
        form = ScalarFormatter()
        form.set_scientific(False)
        axis.set_major_formatter(form)
        axis.set_minor_formatter(NullFormatter())


def files(drawing: Drawing) -> dict[str, bytes]:
    """The figure as `svg` and `png`, without a date, so that the same data give the same files."""
    out = {}
    drawing.figure.draw_without_rendering()  # the layout is found once
    drawing.figure.set_layout_engine("none")
    for form, more in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 220})):
        data = io.BytesIO()
        drawing.figure.savefig(data, format=form, **more)
        out[form] = data.getvalue()
    return out


@contextmanager
def style() -> Iterator[None]:
    """The look of all figures; nothing outside changes. A letter that the font lacks is drawn as a box."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield

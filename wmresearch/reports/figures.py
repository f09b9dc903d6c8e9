"""Figures for papers, drawn without a display."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wmresearch.algebra.diagnostics import SpectrumStatistics
from wmresearch.reports.spectrum import Spectrum

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER_WIDTH = 7.0
"""Inches: the text width of a page. A single panel has the width of one of two columns."""
_LETTERS = 14
"""To an inch of a title."""
_PANEL_HEIGHT = 2.1
STYLE: Any = {"font.size": 8, "axes.titlesize": 8, "legend.fontsize": 7, "axes.linewidth": 0.6, "lines.linewidth": 1.0}
_NAMED_HEADS = 9
"""Up to so many heads have a colour each in the legend; more have a colour bar."""
_NULL = "0.72"


def spectrum_png(spectra: Sequence[Spectrum]) -> bytes:
    """`spectrum_figure` as a PNG file."""
    import matplotlib as mpl

    out = io.BytesIO()
    with mpl.rc_context(STYLE):
        spectrum_figure(spectra).savefig(out, format="png", dpi=200)
    return out.getvalue()


def spectrum_figure(spectra: Sequence[Spectrum]) -> Figure:
    """σ_k of each head's diag(γ) M_i against k, one panel a layer; what they were before training in grey behind.

    One run fills a grid with its layers; several of one shape have a column each, with a common scale. Values that are
    zero but for rounding are not drawn.
    """
    from matplotlib.figure import Figure

    layers, heads = spectra[0].shape
    columns = len(spectra) if len(spectra) > 1 else min(3, layers)
    rows = layers if len(spectra) > 1 else math.ceil(layers / columns)
    width = PAPER_WIDTH / 2 if columns == 1 else PAPER_WIDTH
    figure = Figure(figsize=(width, _PANEL_HEIGHT * rows + 0.9), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    panels = [(spectrum, layer) for layer in range(layers) for spectrum in spectra]
    colours = _colours(heads)
    for panel, (spectrum, layer) in zip(axes.flat, panels, strict=False):
        _panel(panel, spectrum, layer, colours)
        panel.set_title(f"layer {layer}")
    for panel in axes.flat[len(panels) :]:
        panel.set_axis_off()
    if len(spectra) > 1:
        for panel, spectrum in zip(axes[0], spectra, strict=True):
            panel.set_title(f"{_name(spectrum, width / columns)}\nlayer 0", parse_math=False)
    else:
        figure.suptitle(_name(spectra[0], width), fontsize="medium", parse_math=False)
    for panel in axes.flat[max(0, len(panels) - columns) : len(panels)]:  # those with none below
        panel.set_xlabel("index k, 1 the largest")
        panel.xaxis.set_tick_params(labelbottom=True)
    for panel in axes[:, 0]:
        panel.set_ylabel("singular value σₖ of diag(γ) M")
    _legend(figure, axes.flat[0], colours)
    return figure


def _name(spectrum: Spectrum, inches: float) -> str:
    step = f", step {spectrum.step}"
    room = int(_LETTERS * inches) - len(step)
    return (spectrum.run if len(spectrum.run) <= room else f"…{spectrum.run[1 - room :]}") + step


def _panel(panel: Axes, spectrum: Spectrum, layer: int, colours: NDArray[np.float64]) -> None:
    from matplotlib.ticker import MaxNLocator

    marker = "." if spectrum.trained.singular_values.shape[-1] <= 16 else ""
    for head, colour in enumerate(colours):
        index, values = _drawn(spectrum.initial, layer, head)
        label = "before training" if head == 0 else "_"
        panel.plot(index, values, color=_NULL, marker=marker, markersize=2.5, zorder=1, label=label)
        index, values = _drawn(spectrum.trained, layer, head)
        panel.plot(index, values, color=colour, marker=marker, markersize=3.5, zorder=2, label=f"head {head}")
    panel.set_yscale("log")
    panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    panel.grid(visible=True, linewidth=0.3, alpha=0.5)


def _drawn(statistics: SpectrumStatistics, layer: int, head: int) -> tuple[NDArray[np.int64], NDArray[np.floating]]:
    """Each k and σ_k, up to where σ is 0 but for rounding (r ε σ_1): on a logarithmic axis that would be a cliff."""
    values = np.asarray(statistics.singular_values[layer, head])
    values = values[values > len(values) * np.finfo(values.dtype).eps * values.max()]
    return np.arange(1, len(values) + 1), values


def _colours(heads: int) -> NDArray[np.float64]:
    import matplotlib as mpl

    if heads <= _NAMED_HEADS:
        no_grey = np.delete(np.arange(10), 7)
        return np.asarray(mpl.colormaps["tab10"](no_grey[:heads]))
    return np.asarray(mpl.colormaps["viridis"](np.linspace(0, 1, heads)))


def _legend(figure: Figure, panel: Axes, colours: NDArray[np.float64]) -> None:
    handles, labels = panel.get_legend_handles_labels()
    if len(colours) > _NAMED_HEADS:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize
        from matplotlib.ticker import MaxNLocator

        scale = ScalarMappable(Normalize(0, len(colours) - 1), "viridis")
        figure.colorbar(scale, ax=figure.axes, label="head", aspect=40, ticks=MaxNLocator(integer=True))
        handles, labels = handles[:1], labels[:1]
    else:  # the heads first
        handles, labels = [*handles[1:], handles[0]], [*labels[1:], labels[0]]
    figure.legend(handles, labels, loc="outside lower center", ncols=int(figure.get_figwidth() / 0.85), frameon=False)

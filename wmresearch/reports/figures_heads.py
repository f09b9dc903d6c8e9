"""Figures of the heads' maps W_M over a sweep: spectra, effective ranks, overlaps, where the rank went."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wmresearch.reports.curves import Band, band, thinned
from wmresearch.reports.evidence import Evidence, Group, Run, read_arrays
from wmresearch.reports.figure_parts import CannotDrawError, Drawing, chosen, column, legend, mark, outer_labels, plain
from wmresearch.reports.figures_training import draw_band
from wmresearch.reports.statistics import mean_interval

_PANELS = 6
_LAYERS = 6
_NO_SPECTRA = "no run has measured its heads (training.diagnostics)"
_ONE_RUN = "Of each arm the run with the first seed, at its last measurement."


def spectra_curves(evidence: Evidence) -> Drawing:
    """σ_k / σ_1 of each arm's heads, layer by layer: median over heads, and the range of its middle half."""
    found, note = _last(evidence, "singular_values")
    layers = _some(found[0][1].shape[0], _LAYERS)
    rows, lowest = math.ceil(len(layers) / 2), 1.0
    figure, axes = column(0.5 + 1.35 * rows, rows, min(2, len(layers)), sharex=True, sharey=True)
    for panel, layer in zip(axes.flat, layers, strict=False):
        for group, values, _ in found:
            if layer >= values.shape[0]:
                continue
            index, middle, low, high = _relative(values[layer])
            every = max(1, len(index) // 6)
            look, lowest = mark(group.place), min(lowest, float(middle.min()))
            panel.plot(index, middle, markevery=every, label=plain(group.label), **look.line)
            panel.fill_between(index, low, high, color=look.colour, alpha=0.14, linewidth=0)
        panel.set_title(f"layer {layer}")
        panel.set_yscale("log")
    axes.flat[0].set_ylim(0.5 * lowest, 2)
    for panel in axes.flat[len(layers) :]:
        panel.set_axis_off()
    outer_labels(axes, len(layers), "index k", "σₖ / σ₁")
    legend(figure, axes.flat[0])
    steps = _steps([step for _, _, step in found])
    return Drawing(figure, f"Median over a layer's heads; shade: their middle half. {_ONE_RUN} {steps} {note}".strip())


def _relative(values: NDArray[np.float64]) -> tuple[NDArray[np.int64], ...]:
    """Index, median and quartiles over heads of σ_k / σ_1, up to where the median is 0 but for rounding."""
    first = np.maximum(values[:, :1], np.finfo(float).tiny)
    shares = np.sort(values, axis=-1)[:, ::-1] / first
    floor = values.shape[-1] * float(np.finfo(np.float32).eps)
    middle, low, high = (np.maximum(np.quantile(shares, q, axis=0), floor) for q in (0.5, 0.25, 0.75))
    kept = max(1, int((middle > floor).sum()))
    return np.arange(1, kept + 1), middle[:kept], low[:kept], high[:kept]


def spectra_heat(evidence: Evidence) -> Drawing:
    """log₁₀ σ_k of every head, a row each, layer under layer; a panel for each arm."""
    from matplotlib.ticker import MaxNLocator

    found, note = _last(evidence, "singular_values")
    found = found[:_PANELS]
    rows = math.ceil(len(found) / 2)
    figure, axes = column(0.6 + 1.5 * rows, rows, min(2, len(found)))
    tops = [float(values.max()) for _, values, _ in found if values.max() > 0]
    if not tops:
        raise CannotDrawError("all singular values are 0")
    top = math.log10(max(tops))
    image = None
    for panel, (group, values, _) in zip(axes.flat, found, strict=False):
        layers, heads, width = values.shape
        logs = np.log10(np.maximum(values.reshape(layers * heads, width), 10 ** (top - 3)))
        image = panel.imshow(
            logs, aspect="auto", cmap="cividis", vmin=top - 3, vmax=top, interpolation="nearest",
            extent=(0.5, width + 0.5, layers * heads - 0.5, -0.5),
        )  # fmt: skip
        for layer in range(1, layers):
            panel.axhline(layer * heads - 0.5, color="white", linewidth=0.7)
        shown = _some(layers, 6)
        panel.set_yticks([(layer + 0.5) * heads - 0.5 for layer in shown], [f"{layer}" for layer in shown])
        panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        panel.grid(visible=False)
        panel.tick_params(axis="y", length=0)
        panel.set_title(plain(group.label, 30))
    for panel in axes.flat[len(found) :]:
        panel.set_axis_off()
    outer_labels(axes, len(found), "index k", "layer, a line a head")
    assert image is not None
    figure.colorbar(image, ax=list(axes.flat), label="log₁₀ σₖ", aspect=35, pad=0.02)
    steps = _steps([step for _, _, step in found])
    return Drawing(figure, f"Cut off three decades below the largest. {_ONE_RUN} {steps} {note}".strip())


def overlap_matrix(evidence: Evidence) -> Drawing:
    """|⟨M_i, M_j⟩| / (‖M_i‖ ‖M_j‖) of the heads of a layer; a line of panels for each arm."""
    found, note = _last(evidence, "cosines")
    found = found[:4]
    layers = _some(min(values.shape[0] for _, values, _ in found), 4)
    figure, axes = column(0.4 + 0.95 * len(found), len(found), len(layers))
    image = None
    for line, (group, values, _) in zip(axes, found, strict=True):
        for panel, layer in zip(line, layers, strict=True):
            image = panel.imshow(np.abs(values[layer]), cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
            panel.grid(visible=False)
            panel.set_xticks([])
            panel.set_yticks([])
        line[0].set_ylabel(plain(group.label, 20))
    for panel, layer in zip(axes[0], layers, strict=True):
        panel.set_title(f"layer {layer}")
    assert image is not None
    figure.colorbar(image, ax=list(axes.flat), label="|cosine| of two heads' maps", aspect=35, pad=0.02)
    steps = _steps([step for _, _, step in found])
    return Drawing(figure, f"Head by head, the diagonal is 1. {_ONE_RUN} {steps} {note}".strip())


def effective_rank(evidence: Evidence) -> Drawing:
    """exp(−Σ p ln p), p = σ/Σσ: mean over heads and layers, over training, with the t interval over seeds."""
    groups, note = chosen([group for group in evidence.groups if group.with_heads()], evidence.baseline)
    bands = [(group, found) for group in groups if (found := rank_band(group)) is not None]
    if not any(len(found.steps) > 1 for _, found in bands):
        raise CannotDrawError(_NO_SPECTRA)
    figure, axes = column(2.4)
    for group, found in bands:
        draw_band(axes[0, 0], found, mark(group.place), plain(group.label))
    axes[0, 0].set_xlabel("step")
    axes[0, 0].set_ylabel("effective rank")
    legend(figure, axes[0, 0])
    return Drawing(figure, f"Mean over heads, layers and seeds; band: 95 % t interval over seeds. {note}".strip())


def rank_band(group: Group) -> Band | None:
    """The effective rank over training, a mean over heads and layers in each run."""
    from wmresearch.reports.curves import Curve

    curves = []
    for run in group.with_heads():
        assert run.heads is not None
        values = run.heads.values["effective_rank"].mean(axis=(1, 2))
        curves.append(Curve(run.heads.steps, values))
    return band(curves) if curves else None


def rank_by_layer(evidence: Evidence) -> Drawing:
    """Where the heads found their ranks: the sum over a layer's heads. A mean over seeds, with its interval."""
    groups, note = chosen([group for group in evidence.groups if _allocations(group)], evidence.baseline)
    if not groups:
        raise CannotDrawError("no run's heads found their ranks (ranks.jsonl)")
    figure, axes = column(2.4)
    panel = axes[0, 0]
    for number, group in enumerate(groups):
        sums = np.array(_allocations(group), float)
        estimates = [mean_interval(list(map(float, layer))) for layer in sums.T]
        means = np.array([found.mean for found in estimates], float)
        highs = np.array([np.nan if found.high is None else found.high for found in estimates], float)
        shift = (number - (len(groups) - 1) / 2) * 0.08
        half = highs - means if len(sums) > 1 else None
        panel.errorbar(
            np.arange(len(means)) + shift, means, yerr=half, capsize=2, elinewidth=0.8, label=plain(group.label),
            **mark(group.place).line,
        )  # fmt: skip
    panel.set_xticks(_some(max(len(_allocations(group)[0]) for group in groups), 12))
    panel.set_ylim(bottom=0)
    panel.set_xlabel("layer")
    panel.set_ylabel("rank of all its heads")
    legend(figure, panel)
    return Drawing(figure, f"Mean over seeds; bars: 95 % t interval. {note}".strip())


def _allocations(group: Group) -> list[list[int]]:
    """Of each run with ranks: their sum by layer."""
    found = [run.ranks for run in group.counted if run.ranks]
    sums = [[sum(layer) for layer in ranks] for ranks in found if ranks]
    return [row for row in sums if len(row) == len(sums[0])]


def truncation(evidence: Evidence) -> Drawing:
    """What the loss becomes when every map is cut to rank r after training, one run of each arm."""
    groups, note = chosen([group for group in evidence.groups if _truncated(group)], evidence.baseline)
    if not groups:
        command = "wm spectrum RUN --truncate 1,2,4 --format json --out RUN/truncation.json"
        raise CannotDrawError(f"no run has a truncation.json, as `{command}` writes it")
    figure, axes = column(2.4)
    panel = axes[0, 0]
    for group in groups:
        ranks, losses = zip(*_truncated(group), strict=True)
        panel.plot(ranks, losses, label=plain(group.label), **mark(group.place).line)
    panel.set_xlabel("rank that each map is cut to")
    panel.set_ylabel("added validation loss (nats/token)")
    legend(figure, panel)
    return Drawing(figure, f"Without training again; against the same run intact. One run of each arm. {note}".strip())


def _truncated(group: Group) -> list[tuple[int, float]]:
    for run in group.counted:
        try:
            data = json.loads((run.folder / "truncation.json").read_bytes())
            points = [(o["rank"], o["difference"]) for o in data["outcomes"] if o["rank"] and not o["dropped"]]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if points:
            return sorted(points)
    return []


def shown_run(group: Group) -> Run | None:
    """The run of a row whose spectra are shown: the one with the first seed that has any."""
    return next((run for run in group.counted if run.spectra()), None)


def _last(evidence: Evidence, name: str) -> tuple[list[tuple[Group, NDArray[np.float64], int]], str]:
    """Arm by arm: the newest array of a name of its first seed, and the step it was measured at."""
    groups, note = chosen([group for group in evidence.groups if shown_run(group)], evidence.baseline)
    found = []
    for group in groups:
        run = shown_run(group)
        path = run.spectra()[-1] if run else None
        values = read_arrays(path).get(name) if path else None
        if path and values is not None and values.ndim == 3 and values.size and np.isfinite(values).all():
            found.append((group, values, int(path.stem)))
    if not found:
        missing = " with cosines between heads, which older runs lack" if groups else ""
        raise CannotDrawError(_NO_SPECTRA if not missing else f"no run has measured its heads{missing}")
    return found, note


def _some(count: int, most: int) -> list[int]:
    return [int(index) for index in thinned(count, most)]


def _steps(steps: Sequence[int]) -> str:
    low, high = min(steps), max(steps)
    return f"Step {low:,}." if low == high else f"Steps {low:,} to {high:,}."

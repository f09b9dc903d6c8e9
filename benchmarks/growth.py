"""Does cost grow as it should? A training step against context, width, heads, rank and density.

    python benchmarks/growth.py [--rounds N] [--only context width …] [--out benchmarks/results/growth.md]
    python benchmarks/growth.py --size tiny --only rank     # quickly, to see that it runs

The points of a sweep take turns within each round, so that a busy machine slows all of them; times are medians over
rounds after a first call that compiles. A slope is the p of time ∝ quantity^p, by least squares on logarithms over all
points of a sweep. Its ± is a standard error by a bootstrap over rounds. The cost model's slope is the same fit to its
operations at the same points: a step is a sum of parts that grow differently, so that only slopes over the same points
can be compared. With `--out` each sweep is drawn beside the page too.
"""

from __future__ import annotations

import argparse
import gc
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from page import load, measured_by, put_out, say, spread
from train_step import VOCAB, measure, our_config, ours

from wmresearch.config import RunConfig
from wmresearch.model.cost import model_cost
from wmresearch.reports.figures import PAPER_WIDTH, STYLE

if TYPE_CHECKING:
    from matplotlib.axis import Axis

STEPS, RESAMPLES = 8, 2000
TINY = 8
"""How many times fewer tokens `--size tiny` has, and only the first two points."""
_TICKS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9))
"""Ticks within a power of ten, from few to many."""


@dataclass(frozen=True)
class Sweep:
    """A quantity, and the models that differ in it."""

    axis: str
    about: str
    """What stays the same."""
    values: tuple[Any, ...]
    tokens: int
    """In a batch."""
    shape: Callable[[Any], dict[str, int]]
    head_output: Callable[[Any], dict[str, Any]] = lambda _: {"kind": "standard"}
    model: dict[str, Any] = field(default_factory=dict)

    def config(self, value: Any, tokens: int) -> RunConfig:
        shape = self.shape(value)
        batch = max(1, tokens // shape["context"])
        return our_config({**shape, "n_layers": 1, "batch": batch}, self.head_output(value), bias=False, **self.model)


def _shape(d: int, heads: int, context: int) -> dict[str, int]:
    return {"d_model": d, "n_heads": heads, "context": context}


NARROW = {"d_head": 32, "d_mlp": 64}
"""Little beside what is swept, so that its part of a step is large."""
SWEEPS = {
    "context": Sweep(
        "context T (tokens)",
        "d 128, 4 heads of width 32, standard, an MLP of width 64",
        (64, 128, 256, 512, 1024),
        2048,
        lambda t: _shape(128, 4, t),
        model=NARROW,
    ),
    "width": Sweep(
        "width d",
        "context 128, d/32 heads of width 32, standard",
        (64, 128, 256, 512, 768),
        1024,
        lambda d: _shape(d, d // 32, 128),
    ),
    "heads": Sweep(
        "heads H",
        "context 128, d 256, heads of width 32, factorized at rank 32, an MLP of width 64",
        (1, 2, 4, 8, 16, 32),
        1024,
        lambda h: _shape(256, h, 128),
        lambda _: {"kind": "factorized", "rank": 32},
        NARROW,
    ),
    "rank": Sweep(
        "rank r of a head",
        "context 128, d 256, 8 heads of width 32, factorized, an MLP of width 64",
        (8, 16, 32, 64, 128, 256),
        1024,
        lambda _: _shape(256, 8, 128),
        lambda r: {"kind": "factorized", "rank": r},
        NARROW,
    ),
    "density": Sweep(
        "density (share of blocks kept)",
        "context 64, d 640, 4 heads of width 32, sparse in blocks of 32 × 32, an MLP of width 64",
        (0.05, 0.1, 0.2, 0.4, 0.7, 1.0),
        512,
        lambda _: _shape(640, 4, 64),
        lambda share: {"kind": "sparse", "pattern": {"kind": "block", "size": 32}, "density": share},
        NARROW,
    ),
}


@dataclass(frozen=True)
class Growth:
    """What a sweep came to."""

    values: np.ndarray
    seconds: np.ndarray
    """Of a step: round, point."""
    operations: np.ndarray
    """Of a step, by the cost model."""

    @cached_property
    def medians(self) -> np.ndarray:
        return np.median(self.seconds, axis=0)

    @cached_property
    def fit(self) -> np.ndarray:
        """Slope, and the logarithm of the seconds at 1."""
        return line(self.values, self.medians)

    @cached_property
    def error(self) -> float:
        """Standard error of the slope: rounds drawn with replacement, all points of a round together."""
        rounds = len(self.seconds)
        draws = np.random.default_rng(0).integers(0, rounds, (RESAMPLES, rounds))
        return float(np.std(line(self.values, np.median(self.seconds[draws], axis=1).T)[0]))

    @cached_property
    def expected(self) -> float:
        """The cost model's slope."""
        return float(line(self.values, self.operations)[0])

    @cached_property
    def rate(self) -> float:
        """Operations a second at which the cost model is right on average (of logarithms)."""
        return float(np.exp(np.mean(np.log(self.operations / self.medians))))


def line(values: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """Slope, and height at 1, of the line through the logarithms; of each column of heights."""
    return np.polyfit(np.log(values), np.log(heights), 1)


def grow(sweep: Sweep, rounds: int, tiny: bool) -> Growth:
    """Times every point."""
    values = sweep.values[:2] if tiny else sweep.values
    configs = [sweep.config(value, sweep.tokens // TINY if tiny else sweep.tokens) for value in values]
    contestants, operations = {}, []
    for index, config in enumerate(configs):
        batch, context = config.data.batch_size, config.model.context
        tokens = np.random.default_rng(0).integers(0, VOCAB, (STEPS, batch, context + 1), np.int32)
        contestants[str(index)] = ours(config, tokens)
        operations.append(batch * context * model_cost(config.model, VOCAB).training_flops_per_token)
    times = measure(contestants, rounds, STEPS)
    return Growth(np.array(values, float), np.array(list(times.values())).T, np.array(operations))


def section(name: str, sweep: Sweep, found: Growth, picture: str | None) -> list[str]:
    """One sweep as Markdown."""
    lines = [
        f"## {name.capitalize()}",
        "",
        f"1 layer without biases, {sweep.about}.",
        f"Slope measured {found.fit[0]:.2f} ± {found.error:.2f}, the cost model's {found.expected:.2f}.",
        f"The cost model's times are at {found.rate / 1e9:,.0f} GFLOP/s, which fits this sweep best.",
        "",
        f"| {sweep.axis} | step, ms (middle half) | cost model, GFLOP | cost model, ms | measured / cost model |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for index, (value, operations) in enumerate(zip(found.values, found.operations, strict=True)):
        predicted = operations / found.rate
        cells = (f"{operations / 1e9:.3g}", f"{1e3 * predicted:.1f}", f"{found.medians[index] / predicted:.2f}")
        lines.append(f"| {value:g} | {spread(found.seconds[:, index])} | {' | '.join(cells)} |")
    return [*lines, "", *([f"![{name}]({picture})", ""] if picture else [])]


def draw(sweep: Sweep, found: Growth) -> bytes:
    """Measured steps, the power law through them, and the cost model at the rate that fits best, as a PNG file."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    low, high = 1e3 * np.quantile(found.seconds, (0.25, 0.75), axis=0)
    medians, (slope, height) = 1e3 * found.medians, found.fit
    out = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(PAPER_WIDTH / 2, 2.7), layout="constrained")
        axes = figure.subplots()
        axes.set(xscale="log", yscale="log", xlabel=sweep.axis, ylabel="training step (ms)")
        predicted = 1e3 * found.operations / found.rate
        axes.plot(found.values, predicted, color="tab:orange", label=f"cost model, slope {found.expected:.2f}")
        fitted = 1e3 * np.exp(height) * found.values**slope
        label = f"fitted, slope {slope:.2f} ± {found.error:.2f}"
        axes.plot(found.values, fitted, color="tab:blue", linestyle="--", label=label)
        bars = np.maximum([medians - low, high - medians], 0)
        axes.errorbar(
            found.values, medians, bars, color="tab:blue", linestyle="none", marker="o", markersize=3.5,
            elinewidth=0.8, capsize=2, label="measured, middle half",
        )  # fmt: skip
        axes.margins(x=0.06, y=0.08)
        _ticks(axes.xaxis, list(found.values))
        bottom, top = axes.get_ylim()
        steps = [[m * 10.0**e for e in range(-4, 7) for m in marks if bottom <= m * 10.0**e <= top] for marks in _TICKS]
        _ticks(axes.yaxis, next((marks for marks in steps if len(marks) >= 4), steps[-1]))
        axes.grid(visible=True, linewidth=0.3, alpha=0.5)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="outside upper center", frameon=False)
        figure.savefig(out, format="png", dpi=200)
    return out.getvalue()


def _ticks(axis: Axis, at: list[float]) -> None:
    """Ticks that say their value."""
    from matplotlib.ticker import NullLocator

    axis.set_ticks(at, [f"{value:g}" for value in at])
    axis.set_minor_locator(NullLocator())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="+", choices=SWEEPS, default=list(SWEEPS), metavar="QUANTITY", help="of all")
    parser.add_argument("--size", choices=["full", "tiny"], default="full", help="tiny: only to see that it runs")
    parser.add_argument("--out", type=Path, help="also write the Markdown to this file, and plots beside it")
    options = parser.parse_args()
    tiny = options.size == "tiny"
    busy, sections = load(), []
    summary = [
        "| against | from | to | slope measured | slope of the cost model |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name in options.only:
        sweep = SWEEPS[name]
        say(f"{name}: compiles, then {options.rounds} rounds")
        found = grow(sweep, options.rounds, tiny)
        gc.collect()
        picture = None
        if options.out:
            picture = f"{options.out.stem}_{name}.png"
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.with_name(picture).write_bytes(draw(sweep, found))
        sections += section(name, sweep, found, picture)
        ends = f"{found.values[0]:g} | {found.values[-1]:g}"
        summary.append(f"| {name} | {ends} | {found.fit[0]:.2f} ± {found.error:.2f} | {found.expected:.2f} |")
    page = [
        "# How cost grows",
        "",
        f"{measured_by('growth.py')}, {options.rounds} rounds.",
        busy,
        "",
        "A training step of a model of one layer, at a fixed number of tokens a batch. A slope is the p of",
        "time ∝ quantity^p, by least squares on logarithms over the points of a table. Its ± is a standard error by",
        f"a bootstrap over rounds ({RESAMPLES:,} resamples): it says how well the slope of these points is known, not",
        "how straight they lie. The cost model counts the operations of matrix products alone, all at one rate, and",
        "not what moves memory: the softmax, norms, gathered blocks, the optimizer.",
        "",
        *summary,
        "",
        *sections,
    ]
    put_out(page, options.out)


if __name__ == "__main__":
    main()

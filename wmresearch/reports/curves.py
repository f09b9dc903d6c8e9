"""What runs log over their steps, and means over seeds of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from wmresearch.reports.statistics import CONFIDENCE

Numbers = NDArray[np.float64]
Steps = NDArray[np.int64]


@dataclass(frozen=True)
class Curve:
    """A value at each of the steps at which it was logged."""

    steps: Steps
    values: Numbers


@dataclass(frozen=True)
class Band:
    """Mean over n curves and its t interval at the steps that all have; below two low and high are NaN."""

    steps: Steps
    mean: Numbers
    low: Numbers
    high: Numbers
    n: int


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a .jsonl file; none where there is no such file. What is no JSON object is left out."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError:
        return []
    try:
        found = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        found = list(_readable(lines))
    return [line for line in found if isinstance(line, dict) and type(line.get("step")) is int]


def _readable(lines: Iterable[bytes]) -> Iterable[Any]:
    for line in lines:
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue


def read_curves(path: Path) -> dict[str, Curve]:
    """Name of a metric → its curve, from a metrics.jsonl. What is no finite number is left out."""
    steps: dict[str, list[int]] = {}
    values: dict[str, list[float]] = {}
    for line in read_lines(path):
        step = line.pop("step")
        for name, value in line.items():
            if type(value) is float or type(value) is int:
                if name not in steps:
                    steps[name], values[name] = [], []
                steps[name].append(step)
                values[name].append(value)
    found = {name: (np.array(steps[name]), np.array(values[name], float)) for name in steps}
    return {name: Curve(at[kept], of[kept]) for name, (at, of) in found.items() for kept in [np.isfinite(of)]}


def band(curves: Sequence[Curve]) -> Band:
    """x̄ ± t_{n−1} s/√n at each step."""
    steps = curves[0].steps
    for curve in curves[1:]:
        steps = np.intersect1d(steps, curve.steps)
    values = np.stack([curve.values[np.searchsorted(curve.steps, steps)] for curve in curves])
    n, mean = len(values), values.mean(axis=0)
    half = np.full(mean.shape, np.nan)
    if n > 1:
        half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * values.std(axis=0, ddof=1) / np.sqrt(n)
    return Band(steps, mean, mean - half, mean + half, n)


def smoothed(curve: Curve, window: int) -> Curve:
    """The mean over so many neighbours of each value, as many before as after; fewer at both ends."""
    reach = window // 2
    sums = np.concatenate([[0.0], np.cumsum(curve.values)])
    at = np.arange(len(curve.values))
    span = np.minimum(np.minimum(at, len(at) - 1 - at), reach)
    return Curve(curve.steps, (sums[at + span + 1] - sums[at - span]) / (2 * span + 1))


def thinned(count: int, most: int) -> Steps:
    """At most so many of count indices, evenly, the first and the last among them."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, most).round().astype(int))

"""What the page's plots are drawn of: curves and spectra as packed arrays, every value as the run logged it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from wmresearch.reports.curves import thinned
from wmresearch.reports.evidence import Evidence, Group, Run, read_arrays
from wmresearch.reports.figure_parts import chosen
from wmresearch.reports.figures_costs import COSTS
from wmresearch.reports.figures_heads import shown_run
from wmresearch.reports.figures_sweep import Made
from wmresearch.reports.statistics import CONFIDENCE

_CURVE_BYTES = 1_100_000
_FEWEST, _MOST = 40, 500
"""Points of a curve, however many there are."""
_SPECTRA_VALUES = 60_000
_EVALUATIONS, _LAYERS, _HEADS, _INDICES = 25, 24, 32, 64
_FIRST = ("validation_loss", "train_loss")
_MOST_METRICS = 16


def page_data(evidence: Evidence, made: Sequence[Made]) -> dict[str, Any]:
    """Plain data for the page's script."""
    steps: dict[bytes, int] = {}
    metrics = _metrics(evidence)
    curves = sum(len(run.curves) for _, run in evidence.runs())
    most = int(np.clip(_CURVE_BYTES // (4 * max(1, curves)), _FEWEST, _MOST))
    groups = [_group(evidence, group, metrics, most, steps) for group in evidence.groups]
    return {
        "sweep": evidence.table.sweep,
        "baseline": evidence.baseline,
        "loss": evidence.loss,
        "metrics": metrics,
        "groups": groups,
        "steps": [_packed(np.frombuffer(key, "<i4")) for key in steps],
        "t": {n: float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) for n in range(2, 65)},
        "drawn": _drawn(evidence, most),
        "costs": {name: title for name, (title, _) in COSTS.items()},
        "spectra": _spectra(evidence),
        "figures": [{"name": figure.name, "svg": figure.svg.decode("utf-8")} for figure in made if figure.svg],
    }


def _metrics(evidence: Evidence) -> list[str]:
    found = {name for _, run in evidence.runs() for name in run.curves}
    return [*(name for name in _FIRST if name in found), *sorted(found - set(_FIRST))][:_MOST_METRICS]


def _drawn(evidence: Evidence, most: int) -> dict[str, int]:
    """The longest curve, and so many of its steps that are drawn."""
    longest = max((len(curve.steps) for _, run in evidence.runs() for curve in run.curves.values()), default=0)
    return {"logged": longest, "kept": min(longest, most)}


def _group(
    evidence: Evidence, group: Group, metrics: Sequence[str], most: int, steps: dict[bytes, int]
) -> dict[str, Any]:
    loss = group.compared
    counted = set(group.counted)
    wanted = {name: _wanted(group, name, most) for name in metrics}
    return {
        "name": group.name,
        "arm": group.arm,
        "baseline": group.row.arm == evidence.baseline,
        "label": group.label,
        "loss": [loss.mean, loss.low, loss.high],
        "n": group.row.n,
        "costs": {name: value(group) for name, (_, value) in COSTS.items()},
        "runs": [
            {
                "seed": run.seed,
                "state": run.record.state,
                "counted": run in counted,
                "curves": {name: _curve(run, name, wanted[name], steps) for name in metrics if name in run.curves},
            }
            for run in group.runs
        ],
    }


def _wanted(group: Group, name: str, most: int) -> NDArray[np.int64]:
    """The steps that the curves of a row are drawn at: the same for all, so that there are means over them."""
    longest = max((run.curves[name].steps for run in group.runs if name in run.curves), key=len, default=np.arange(0))
    return longest[thinned(len(longest), most)]


def _curve(run: Run, name: str, wanted: NDArray[np.int64], steps: dict[bytes, int]) -> list[Any]:
    """[number of its list of steps, its values]: at the steps that are wanted, and at its last."""
    curve = run.curves[name]
    chosen = np.isin(curve.steps, wanted)
    chosen[-1:] = True
    kept = np.flatnonzero(chosen)
    key = curve.steps[kept].astype("<i4").tobytes()
    return [steps.setdefault(key, len(steps)), _packed(curve.values[kept])]


def _packed(values: NDArray[Any]) -> dict[str, str]:
    """Little-endian and in base64; as 32 bits only where nothing is lost."""
    kind = "i4" if values.dtype.kind == "i" else "f4"
    if kind == "f4":
        with np.errstate(over="ignore"):
            kind = "f4" if (values.astype("<f4").astype(float) == values).all() else "f8"
    return {kind: base64.b64encode(np.ascontiguousarray(values, f"<{kind}").tobytes()).decode("ascii")}


def _spectra(evidence: Evidence) -> list[dict[str, Any]]:
    """One run of each arm: σ of its heads at some of its evaluations, and their effective ranks."""
    groups, _ = chosen([group for group in evidence.groups if shown_run(group)], evidence.baseline)
    found = []
    for group in groups:
        run = shown_run(group)
        assert run is not None
        files = run.spectra()
        most = _EVALUATIONS
        arrays = _stack([read_arrays(files[index]) for index in thinned(len(files), most)])
        if arrays is None:
            continue
        steps = [int(files[index].stem) for index in thinned(len(files), most)]
        layers, heads, indices = (
            thinned(n, most) for n, most in zip(arrays.shape[1:], (_LAYERS, _HEADS, _INDICES), strict=True)
        )
        ranks = _effective_ranks(arrays)[:, layers][:, :, heads]
        values = arrays[:, layers][:, :, heads][..., indices]
        room = _SPECTRA_VALUES // max(1, len(groups))
        kept = thinned(len(steps), max(2, room // max(1, values[0].size)))
        shape = (len(kept), *values.shape[1:])
        found.append(
            {
                "group": evidence.groups.index(group),
                "seed": run.seed,
                "steps": [steps[index] for index in kept],
                "layers": layers.tolist(),
                "heads": heads.tolist(),
                "index": (indices + 1).tolist(),
                "shape": shape,
                "values": _packed(values[kept].astype(np.float32).astype(float).ravel()),
                "ranks": _packed(ranks[kept].astype(np.float32).astype(float).ravel()),
                "logged": len(files),
            }
        )
    return found


def _stack(arrays: Sequence[dict[str, NDArray[np.float64]]]) -> NDArray[np.float64] | None:
    """`[steps, layers, heads, r]`, zeros where a later step has fewer; None where they do not fit together."""
    found = [each.get("singular_values") for each in arrays]
    known = [values for values in found if values is not None and values.ndim == 3]
    if not known or len(known) < len(found) or len({values.shape[:2] for values in known}) > 1:
        return None
    width = max(values.shape[2] for values in known)
    return np.stack([np.pad(values, ((0, 0), (0, 0), (0, width - values.shape[2]))) for values in known])


def _effective_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """exp(−Σ p ln p), p = σ/Σσ; 0 for a zero map."""
    total = values.sum(axis=-1, keepdims=True)
    p = np.divide(values, total, out=np.zeros_like(values), where=total > 0)
    entropy = -np.sum(np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0), axis=-1)
    return np.where(total[..., 0] > 0, np.exp(entropy), 0)

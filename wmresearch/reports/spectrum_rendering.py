"""Spectra as Markdown, CSV or JSON text: a row for each head. Of one run, or of two side by side."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from wmresearch.algebra.diagnostics import SpectrumStatistics
from wmresearch.reports.markdown import pipe_table
from wmresearch.reports.spectrum import Spectrum

_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("effective_rank", "effective rank", ".2f"),
    ("r95", "r95", ".0f"),
    ("stable_rank", "stable rank", ".2f"),
    ("nuclear_norm", "‖M‖_*", ".4g"),
    ("frobenius_norm", "‖M‖_F", ".4g"),
    ("spectral_norm", "‖M‖₂", ".4g"),
    ("imbalance", "imbalance", ".3f"),
)
_MEANING = (
    "M is the head's map with the norm's gain folded in. Effective\n"
    "rank: exp(−Σ p ln p), p = σ/Σσ. r95: the least k that holds 95 % of Σσ². Stable rank: ‖M‖_F²/‖M‖₂².\n"
    "Imbalance: of AᵀA against BBᵀ, 0 to 1.\n"
)


def render(spectrum: Spectrum, form: str) -> str:
    """The spectra as `md`, `csv` or `json` (which has the singular values too), beside those at initialization."""
    if form == "json":
        heads = [{"layer": layer, "head": head, **_head(spectrum, layer, head)} for layer, head in _places(spectrum)]
        return _json({"run": spectrum.run, "step": spectrum.step, "heads": heads})
    header, rows = _table(spectrum, [("", spectrum.trained), (" at start", spectrum.initial)])
    if form == "csv":
        return csv_text([header, *rows])
    return _markdown(header, rows, f"{spectrum.run} at step {spectrum.step}. {_MEANING}")


def render_two(first: Spectrum, second: Spectrum, form: str) -> str:
    """Each statistic of two runs of one shape in adjacent columns, as `md`, `csv` or `json`."""
    both = (first, second)
    if form == "json":
        heads = [
            {"layer": layer, "head": head, "runs": [_head(spectrum, layer, head) for spectrum in both]}
            for layer, head in _places(first)
        ]
        return _json({"runs": [{"run": spectrum.run, "step": spectrum.step} for spectrum in both], "heads": heads})
    if form == "csv":  # has no notes to say what A and B are
        header, rows = _table(first, [(f" of {spectrum.run}", spectrum.trained) for spectrum in both])
        return csv_text([header, *rows])
    header, rows = _table(first, [(" A", first.trained), (" B", second.trained)])
    runs = "".join(f"{name}: {s.run} at step {s.step}.\n" for name, s in zip("AB", both, strict=True))
    return _markdown(header, rows, runs + _MEANING)


def csv_text(rows: Sequence[Sequence[object]]) -> str:
    """Rows, the header among them, as CSV."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _table(like: Spectrum, columns: Sequence[tuple[str, SpectrumStatistics]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: each statistic once for every one of the `columns`, which say what is added to its name."""
    header = ["layer", "head"] + [name + added for _, name, _ in _COLUMNS for added, _ in columns]
    rows = [
        [str(layer), str(head)]
        + [
            format(_figure(statistics, key, layer, head), form)
            for key, _, form in _COLUMNS
            for _, statistics in columns
        ]
        for layer, head in _places(like)
    ]
    return header, rows


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]], notes: str) -> str:
    return "\n".join(pipe_table(header, rows, [True] * len(header))) + "\n\n" + notes


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _places(spectrum: Spectrum) -> list[tuple[int, int]]:
    layers, heads = spectrum.shape
    return [(layer, head) for layer in range(layers) for head in range(heads)]


def _figure(statistics: SpectrumStatistics, key: str, layer: int, head: int) -> float:
    return float(getattr(statistics, key)[layer, head])


def _head(spectrum: Spectrum, layer: int, head: int) -> dict[str, Any]:
    """All figures of a head, with the same before training under `initial`."""
    trained, initial = (
        {key: _figure(statistics, key, layer, head) for key, _, _ in _COLUMNS}
        | {"singular_values": statistics.singular_values[layer, head].tolist()}
        for statistics in (spectrum.trained, spectrum.initial)
    )
    return trained | {"initial": initial}

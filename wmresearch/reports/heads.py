"""What the heads' maps of a sweep's runs came to: means over seeds, from the runs' diagnostics at their last step."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wmresearch.reports import numbers
from wmresearch.reports.columns import difference, estimate, setting_column
from wmresearch.reports.latex import to_tex
from wmresearch.reports.records import Record
from wmresearch.reports.rendering import to_md
from wmresearch.reports.shown import Column, Shown, setting_text
from wmresearch.reports.statistics import Estimate, PairedDifference, holm, mean_interval, paired_difference
from wmresearch.reports.sweep_runs import SweepRuns, read_runs
from wmresearch.training.run_directory import RunDirectory

_FIGURES: dict[str, str] = {
    "effective_rank": "effective rank",
    "r95": "r95",
    "stable_rank": "stable rank",
    "frobenius_norm": "‖M‖_F",
    "nuclear_norm": "‖M‖_*",
    "overlap": "overlap",
    "lambda_eff": "λ_eff",
}
"""Name in diagnostics.jsonl → header."""


@dataclass(frozen=True)
class HeadRow:
    """An arm at one setting: means over its finished runs of each run's mean over heads and layers."""

    arm: str
    settings: dict[str, Any]
    n: int
    planned: int
    validation_loss: Estimate
    loss_delta: PairedDifference | None
    """Of the validation loss to the baseline's, seed by seed; None in the baseline's own rows."""
    figures: dict[str, Estimate]
    at_start: float | None
    """Effective rank before the first step, the null."""
    delta: PairedDifference | None
    """Of the effective rank."""
    p_holm: float | None


def build_heads(directory: Path) -> tuple[SweepRuns, list[HeadRow]]:
    """The rows of the sweep in a directory.

    Raises:
        ReportError: there is no plan that can be used.
    """
    runs = read_runs(Path(directory))
    rows = []
    for (arm, _), group in runs.groups.items():
        finished = _measured(runs.directory, group)
        baseline = _measured(runs.directory, runs.baseline_of(group[0].planned.settings))
        rows.append(_row(group, finished, None if arm == runs.plan.baseline else baseline))
    corrected = iter(holm([row.delta.p for row in rows if row.delta]))
    return runs, [HeadRow(**(vars(row) | {"p_holm": next(corrected) if row.delta else None})) for row in rows]


def _row(group: Sequence[Record], finished: dict[int, Any], baseline: dict[int, Any] | None) -> HeadRow:
    values = {name: [run[name] for run in finished.values() if run[name] is not None] for name in _FIGURES}
    starts = [run["at_start"] for run in finished.values() if run["at_start"] is not None]
    shared = [seed for seed in finished if baseline is not None and seed in baseline]

    def difference(name: str) -> PairedDifference | None:
        if baseline is None:
            return None
        pairs = [(finished[seed][name], baseline[seed][name]) for seed in shared]
        known = [pair for pair in pairs if None not in pair]
        return paired_difference([own for own, _ in known], [other for _, other in known])

    return HeadRow(
        arm=group[0].planned.arm,
        settings=group[0].planned.settings,
        n=len(finished),
        planned=len(group),
        validation_loss=mean_interval([run["validation_loss"] for run in finished.values()]),
        loss_delta=difference("validation_loss"),
        figures={name: mean_interval(found if len(found) == len(finished) else []) for name, found in values.items()},
        at_start=float(np.mean(starts)) if starts else None,
        delta=difference("effective_rank"),
        p_holm=None,
    )


def _measured(directory: Path, group: Sequence[Record]) -> dict[int, dict[str, Any]]:
    """Seed → figures, of the finished runs that have measured their heads."""
    out = {}
    for record in group:
        lines = RunDirectory(directory / record.planned.run_id).diagnostics() if record.finished else []
        last = lines[-1] if lines and record.summary and lines[-1]["step"] == record.summary.step else None
        if last is not None and record.summary is not None:
            first = lines[0]["effective_rank"] if lines[0]["step"] == 0 else None
            figures = {name: _mean(last.get(name)) for name in _FIGURES}
            loss = record.summary.validation_loss
            out[record.planned.seed] = figures | {"at_start": _mean(first), "validation_loss": loss}
    return out


def _mean(values: Any) -> float | None:
    return None if values is None else float(np.mean(values))


def render_heads(directory: Path, form: str) -> str:
    """The heads of a sweep as `md`, `csv`, `tex` or `json`."""
    runs, rows = build_heads(directory)
    if form == "json":
        data = {"sweep": runs.plan.name, "baseline": runs.plan.baseline, "rows": [_plain(row) for row in rows]}
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    if form == "csv":
        return _csv(rows)
    shown = _shown(runs, rows)
    return to_tex(shown) if form == "tex" else to_md(shown)


def _plain(row: HeadRow) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        return vars(value) if isinstance(value, Estimate | PairedDifference) else value

    out = {key: plain(value) for key, value in vars(row).items()}
    return out | {"figures": {name: vars(found) for name, found in row.figures.items()}}


def _csv(rows: Sequence[HeadRow]) -> str:
    out = io.StringIO()
    header = [
        "arm",
        *(rows[0].settings if rows else {}),
        "n",
        "planned",
        "effective_rank_at_start",
        "effective_rank_delta",
    ]
    names = [f"{name}_{part}" for name in ("validation_loss", *_FIGURES) for part in ("mean", "low", "high", "sd")]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*header, "p_holm", *names])
    for row in rows:
        estimates = [row.validation_loss, *row.figures.values()]
        cells = [getattr(found, part) for found in estimates for part in ("mean", "low", "high", "sd")]
        delta = row.delta.mean if row.delta else None
        writer.writerow(
            [
                row.arm,
                *map(setting_text, row.settings.values()),
                row.n,
                row.planned,
                row.at_start,
                delta,
                row.p_holm,
                *cells,
            ]
        )
    return out.getvalue()


def _shown(runs: SweepRuns, rows: Sequence[HeadRow]) -> Shown:
    baseline = runs.plan.baseline
    columns = [Column("arm", "arm", lambda row: row.arm, numeric=False)]
    columns += [setting_column(key, runs.varied) for key in runs.varied]
    columns += [
        Column("validation_loss", "validation loss", lambda row: _estimate(row.validation_loss)),
        Column("loss_delta", f"Δ loss to {baseline}", lambda row: _delta(row.loss_delta)),
        Column(
            "at_start",
            "effective rank at start",
            lambda row: numbers.DASH if row.at_start is None else f"{row.at_start:.1f}",
        ),
    ]
    for name, header in _FIGURES.items():
        if any(row.figures[name].mean for row in rows):
            columns.append(Column(name, header, _cell(name)))
        if name == "effective_rank":
            columns += [
                Column("delta", "Δ", lambda row: _delta(row.delta)),
                Column("p_holm", "p (Holm)", lambda row: numbers.p_value(row.p_holm)),
            ]
    columns.append(Column("seeds", "seeds", lambda row: f"{row.n}/{row.planned}"))
    notes = [
        "Means over heads and layers at the last step, then over seeds: mean ± half-width of the 95 % t interval.",
        "M: a head's map W_M, the norm's gain folded in. Overlap: the largest |cosine| with another head of the layer.",
        "Effective rank: exp(−Σ p ln p), p = σ/Σσ. r95: the least k that holds 95 % of Σσ². Stable rank: ‖M‖_F²/‖M‖₂².",
        *(
            ["λ_eff: weight decay · √v̂, the mean over the head outputs' entries."]
            * any(r.figures["lambda_eff"].mean for r in rows)
        ),
        f"Δ: to {baseline} with the same seed and settings; 95 % paired t interval.",
        "p: of the effective rank's difference, two-sided paired t test, Holm-corrected over the rows.",
        f"Sweep {runs.plan.name}; losses in nats per token over the whole validation split.",
    ]
    return Shown(runs.plan.name, "heads", columns, rows, notes)


def _cell(name: str) -> Callable[[HeadRow], str]:
    return lambda row: _estimate(row.figures[name])


def _at_start(row: HeadRow) -> str:
    return numbers.DASH if row.at_start is None else f"{row.at_start:.1f}"


def _estimate(found: Estimate) -> str:
    if found.mean is not None and found.n == 1 and 0 < abs(found.mean) < 0.1:
        return f"{found.mean:.2g}"  # without a spread that says how many digits count
    return estimate(found)


def _delta(found: PairedDifference | None) -> str:
    if found is None:
        return "baseline"
    return difference(found)

"""All that figures and the page are made of: the rows of a sweep's table, with what their runs logged."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wmresearch.reports.curves import Band, Curve, band, read_curves, read_lines, smoothed
from wmresearch.reports.records import Record, read_record, setting_key
from wmresearch.reports.rows import Row, Table
from wmresearch.reports.shown import setting_text
from wmresearch.reports.statistics import Estimate
from wmresearch.reports.table import SweepRuns, build_table, read_runs

_MEASURED = 200
"""Runs whose heads are read. Beyond, each row gives its first seeds."""


@dataclass(frozen=True)
class Heads:
    """Statistics of a run's heads at its evaluations: name → `[steps, layers, heads]`."""

    steps: NDArray[np.int64]
    values: dict[str, NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Run:
    """A run that is reported."""

    record: Record
    folder: Path
    curves: dict[str, Curve] = field(repr=False)

    @property
    def seed(self) -> int:
        return self.record.planned.seed

    @cached_property
    def heads(self) -> Heads | None:
        """None where the run has measured none."""
        lines = read_lines(self.folder / "diagnostics.jsonl")
        if not lines:
            return None
        steps = np.array([line["step"] for line in lines])
        values = {}
        for name in ("effective_rank", "overlap"):
            try:
                found = np.array([line.get(name) for line in lines], float)
            except (TypeError, ValueError):
                continue
            if found.ndim == 3:
                values[name] = found
        return Heads(steps, values) if values else None

    @cached_property
    def ranks(self) -> list[list[int]] | None:
        """The rank of each head of each layer that the run found, if it did."""
        lines = read_lines(self.folder / "ranks.jsonl")
        return lines[-1].get("ranks") if lines else None

    def spectra(self) -> list[Path]:
        """Files of arrays, the first step first."""
        return sorted(path for path in (self.folder / "spectra").glob("*.npz") if path.stem.isdigit())


def read_arrays(path: Path) -> dict[str, NDArray[np.float64]]:
    """What a file of spectra/ holds; nothing where it cannot be read."""
    try:
        with np.load(path) as file:
            return {name: np.asarray(file[name], float) for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return {}


@dataclass(frozen=True, eq=False)
class Group:
    """A row of the table and its runs."""

    arm: int
    """The arm's number in the plan."""
    place: int
    """0 for the baseline, then the other arms in the plan's order."""
    name: str
    row: Row
    runs: tuple[Run, ...]
    compared: Estimate
    """Mean of the loss that arms are compared by."""
    measured: int
    """So many of its runs give their heads."""

    @property
    def counted(self) -> tuple[Run, ...]:
        """The finished runs; where there is none, those that have logged something."""
        finished = tuple(run for run in self.runs if run.record.finished)
        return finished or tuple(run for run in self.runs if run.curves and run.record.state != "diverged")

    @property
    def label(self) -> str:
        if self.row.n:
            return self.name
        return f"{self.name} ({'unfinished' if self.counted else 'diverged' if self.row.diverged else 'no run'})"

    @property
    def loss(self) -> float:
        """The mean, infinite where there is none: what rows are ordered by."""
        return math.inf if self.compared.mean is None else self.compared.mean

    def with_heads(self) -> list[Run]:
        return [run for run in self.counted[: self.measured] if run.heads]

    def band(self, metric: str, window: int = 1) -> Band | None:
        """Over its runs' curves of a metric, each smoothed over a window."""
        curves = [smoothed(run.curves[metric], window) for run in self.counted if metric in run.curves]
        found = band(curves) if curves else None
        return found if found is not None and len(found.steps) else None


@dataclass(frozen=True, eq=False)
class Evidence:
    """A sweep, read once."""

    directory: Path
    sweep: SweepRuns
    table: Table
    groups: tuple[Group, ...]
    others: tuple[Record, ...]
    """Planned runs that stand in no row: those that tune, or that are at another arm's values."""

    @property
    def baseline(self) -> str:
        return self.table.baseline

    @property
    def loss(self) -> str:
        """What arms are compared by, in words."""
        return self.table.loss.replace("_", " ")

    def runs(self) -> Iterator[tuple[Group, Run]]:
        for group in self.groups:
            for run in group.runs:
                yield group, run

    def steps(self, run: Run) -> int:
        """The last step that is known of a run."""
        last = [int(curve.steps[-1]) for curve in run.curves.values() if len(curve.steps)]
        known = run.record.summary.step if run.record.summary else None
        return max([*last, known or 0])


def read_evidence(directory: Path) -> Evidence:
    """The evidence in a sweep's directory.

    Raises:
        ReportError: there is no plan that can be used, or the runs read different corpora.
    """
    directory = Path(directory)
    sweep, table = read_runs(directory), build_table(directory)
    rows = {(row.arm, setting_key(row.settings)): row for row in table.rows}
    measured = max(1, _MEASURED // max(1, len(sweep.groups)))
    loss = table.loss
    groups = tuple(_group(sweep, records, rows, loss, measured) for records in sweep.groups.values())
    shown = {run.record.planned.run_id for group in groups for run in group.runs}
    others = tuple(read_record(directory, run) for run in sweep.plan.runs if run.run_id not in shown)
    return Evidence(directory, sweep, table, groups, others)


def _group(
    sweep: SweepRuns, records: Sequence[Record], rows: dict[tuple[str, str], Row], loss: str, measured: int
) -> Group:
    planned = records[0].planned
    folders = [sweep.directory / record.planned.run_id for record in records]
    pairs = zip(records, folders, strict=True)
    runs = tuple(Run(record, folder, read_curves(folder / "metrics.jsonl")) for record, folder in pairs)
    varied = [f"{key.rpartition('.')[2]} {setting_text(planned.settings[key])}" for key in sweep.varied]
    name = " · ".join([planned.arm, *varied])
    row = rows[planned.arm, setting_key(planned.settings)]
    arm = sweep.plan.arms.index(planned.arm)
    return Group(arm, place(sweep, planned.arm), name, row, runs, getattr(row, loss), measured)


def place(sweep: SweepRuns, arm: str) -> int:
    """0 for the baseline, then the other arms in the plan's order."""
    others = [other for other in sweep.plan.arms if other != sweep.plan.baseline]
    return 0 if arm == sweep.plan.baseline else 1 + others.index(arm)

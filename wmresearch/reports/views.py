"""What is asked of a table: columns read from the runs' own files, and the order of the rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from wmresearch.config import ConfigError, yaml_text
from wmresearch.config.problems import Problem, nearest
from wmresearch.reports.columns import every_column
from wmresearch.reports.records import Record, ReportError
from wmresearch.reports.rows import Row, Table, View
from wmresearch.reports.statistics import mean_interval
from wmresearch.training.rows import ARRAYS
from wmresearch.training.run_directory import RunDirectory

_COLUMNS = tuple(column.key for column in every_column(Table("", "", (), {}, ())))
"""Keys of all columns that need no look at the runs' own files."""


class Besides:
    """Reads what a view names and a row does not know by itself."""

    def __init__(self, view: View) -> None:
        self._names = [name for name in view.keys if name not in _COLUMNS]
        self._offered: set[str] = set()
        """All that could have been named, as far as files were read."""

    def of(self, directory: Path, group: Sequence[Record], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Name → the value of a key of the runs' config, or an `Estimate` over the finished runs of what they measured.

        A name with a dot is a config's key; others are looked up in summary.json, then in the last lines of
        metrics.jsonl and of diagnostics.jsonl, there as the mean over heads and layers.
        """
        wanted = [name for name in self._names if name not in settings]
        folders = [RunDirectory(directory / record.planned.run_id) for record in group]
        config = first_config(folder.path for folder in folders) if any("." in name for name in wanted) else {}
        ended = [folder for folder, record in zip(folders, group, strict=True) if record.finished]
        measured = [_measured(folder) for folder in ended] if any("." not in name for name in wanted) else []
        self._offered |= {*config, *settings}.union(*measured)

        def value(name: str) -> Any:
            if "." in name:
                return config.get(name)
            found = [run[name] for run in measured if name in run]
            return mean_interval(found if len(found) == len(measured) else [])

        return {name: value(name) for name in wanted}

    def refuse_unknown(self) -> None:
        """Call it once all rows are read.

        Raises:
            ReportError: a name is none of a column, of a config's key, or of what a finished run measured.
        """
        expected = "a column, a key of the runs' config, or what the runs' files call a number"
        offered = sorted({*_COLUMNS, *self._offered})
        problems = [
            Problem("wm table", "column", name, expected, nearest(name, offered))
            for name in self._names
            if name not in self._offered
        ]
        if problems:
            raise ReportError(problems)


def _measured(folder: RunDirectory) -> dict[str, float]:
    """All numbers that a run ended with."""
    found: dict[str, Any] = {}
    for line in folder.diagnostics()[-1:]:
        found |= {name: float(np.mean(values)) for name, values in line.items() if name not in ARRAYS}
    for line in folder.metrics()[-1:]:
        found |= line
    found |= {name: value for name, value in folder.summary().items() if value is not None}
    return {name: float(value) for name, value in found.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def first_config(folders: Iterable[Path]) -> dict[str, Any]:
    """The first config that can be read, key by key: runs of a row differ in their seed alone."""
    for folder in folders:
        with suppress(ConfigError):
            data = yaml_text.read(RunDirectory(folder).config_file)
            if isinstance(data, dict):
                return yaml_text.flat(data)
    return {}


def arranged(table: Table) -> Table:
    """With its rows in the view's order; rows that are equal there keep the plan's."""
    view, rows = table.view, list(table.rows)
    columns = {column.key: column for column in every_column(table)}
    if view.sort:
        order = columns[view.sort.removeprefix("-")].order
        known = [row for row in rows if order(row) is not None]
        known.sort(key=lambda row: _sortable(order(row)), reverse=view.sort.startswith("-"))
        rows = known + [row for row in rows if order(row) is None]
    if not view.group:
        return replace(table, rows=tuple(rows))
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(columns[view.group].cell(row), []).append(row)
    starts = accumulate(len(group) for group in list(groups.values())[:-1])
    rows = [row for group in groups.values() for row in group]
    return replace(table, rows=tuple(rows), starts_of_groups=tuple(starts))


def _sortable(value: Any) -> tuple[bool, Any]:
    """Numbers before texts."""
    return isinstance(value, str), value

"""A table as people see it, before any format's escapes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


def _plan_order(row: Any) -> None:
    """Nothing to sort by: rows stay where they are."""


@dataclass(frozen=True)
class Column:
    """The name that it is asked for by, its header, and cells as plain text."""

    key: str
    header: str
    cell: Callable[[Any], str]
    order: Callable[[Any], Any] = _plan_order
    """Row → what it is sorted by: a number or a text, None where nothing is known."""
    numeric: bool = True


@dataclass(frozen=True)
class Shown:
    """Columns over rows, and footnotes."""

    sweep: str
    about: str
    """What sets this table apart from others of the sweep; empty for the main one."""
    columns: Sequence[Column]
    rows: Sequence[Any]
    notes: Sequence[str]
    groups: Sequence[int] = ()
    """Numbers of the rows that another group begins at."""


def setting_text(value: Any) -> str:
    """A value of a config: text as it is, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

"""A table as people see it, before any format's escapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Column:
    """Header and cells as plain text."""

    header: str
    cell: Callable[[Any], str]
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

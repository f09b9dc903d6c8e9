"""A table as Markdown, CSV, LaTeX or JSON text. All formats print the same numbers from the same cells."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from collections.abc import Callable
from typing import Any

from wmresearch.reports.columns import shown
from wmresearch.reports.latex import to_tex
from wmresearch.reports.markdown import pipe_table
from wmresearch.reports.rows import Row, Table
from wmresearch.reports.shown import Shown


def render(table: Table, form: str = "md") -> str:
    """The table as text that ends with a line break; `form` is a key of `FORMATS`.

    Raises:
        ValueError: there is no such format.
    """
    if form not in FORMATS:
        raise ValueError(f"format '{form}': expected one of {', '.join(FORMATS)}")
    return FORMATS[form](table)


def to_json(table: Table) -> str:
    return json.dumps(table.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_csv(table: Table) -> str:
    """Plain numbers at full precision, one column each; an empty field where there is no number."""
    out = io.StringIO()
    records = [_flat(row) for row in table.rows]
    writer = csv.DictWriter(out, list(dict.fromkeys(key for record in records for key in record)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def to_md(shown: Shown) -> str:
    """A pipe table that reads well in a terminal, and its footnotes as a list."""
    header = [_md(column.header) for column in shown.columns]
    rows = []
    for number, row in enumerate(shown.rows):
        rows += [[""] * len(header)] * (number in shown.groups)  # a blank line between groups
        rows.append([_md(column.cell(row)) for column in shown.columns])
    lines = pipe_table(header, rows, [column.numeric for column in shown.columns])
    return "\n".join([*lines, "", *(f"- {_md(note)}" for note in shown.notes)]) + "\n"


def _flat(row: Row) -> dict[str, Any]:
    """One level of keys: `validation_loss_mean`, …; the grid's dotted keys after the arm."""
    plain = row.to_dict()
    first = [key for key in ("sweep", "arm") if key in plain]
    out: dict[str, Any] = {key: plain.pop(key) for key in first}
    out |= {key: _field(value) for key, value in plain.pop("settings").items()}
    plain |= plain.pop("extra", {})
    plain["flags"] = "; ".join(plain["flags"])
    plain["delta"] = plain["delta"] or dict.fromkeys(("n", "mean", "low", "high", "p", "p_holm"))
    if plain["tuned"] is not None:
        plain["tuned"] |= {f"at_baseline_{key}": value for key, value in plain["tuned"].pop("at_baseline").items()}
    optional = [key for key in ("adjusted", "tuned", "reach") if plain[key] is None]
    for key, value in plain.items():
        if key in optional:
            continue
        nested = isinstance(value, dict)
        out |= {f"{key}_{name}": _field(item) for name, item in value.items()} if nested else {key: _field(value)}
    return out


def _field(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | bool) else value


def _md(text: str) -> str:
    """On one line, with what Markdown would take for markup escaped; an underscore inside a word is none."""
    line = "".join(c for c in " ".join(text.split()) if unicodedata.category(c) != "Cc")
    return re.sub(r"[\\`*\[\]<>&~$|]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", line)


FORMATS: dict[str, Callable[[Table], str]] = {
    "md": lambda table: to_md(shown(table)),
    "csv": to_csv,
    "tex": lambda table: to_tex(shown(table)),
    "json": to_json,
}

"""The parts of the page that need no script: the table, what arms change, what failed, what it was made from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from wmresearch.reports.columns import shown
from wmresearch.reports.evidence import Evidence, Group
from wmresearch.reports.figures_sweep import Made
from wmresearch.reports.page_words import GOING_ON
from wmresearch.reports.records import Record
from wmresearch.reports.views import first_config

_MOST_FAILURES = 200
_TRACEBACK = 14
"""Last lines of an error that are shown."""
_NOT_COMPARED = ("seed", "tracking")
_ABSENT = "–"


def table(evidence: Evidence) -> str:
    """The table that `wm table` prints, with what its columns are sorted by."""
    found = shown(evidence.table)
    head = "".join(
        f'<th scope="col" data-column="{index}"{_aligned(column.numeric)}><button type="button">'
        f"{escape(column.header)}</button></th>"
        for index, column in enumerate(found.columns)
    )
    by_row = {id(group.row): index for index, group in enumerate(evidence.groups)}
    lines = []
    for row in found.rows:
        cells = []
        for index, column in enumerate(found.columns):
            text, order = column.cell(row), column.order(row)
            value = f' data-value="{order!r}"' if isinstance(order, int | float) else ""
            name = "th scope=row" if index == 0 else "td"
            mark = '<span class="mark" aria-hidden="true"></span>' if index == 0 else ""
            cells.append(
                f'<{name} data-column="{index}"{_aligned(column.numeric)}{value}>{mark}{escape(text)}</{name[:2]}>'
            )
        lines.append(f'<tr data-group="{by_row.get(id(row), -1)}">{"".join(cells)}</tr>')
    notes = "".join(f"<li>{escape(note)}</li>" for note in found.notes)
    body = "\n".join(lines) or f'<tr><td colspan="{len(found.columns)}">The plan has no runs to report.</td></tr>'
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table of the sweep"><table id="table"><thead><tr>'
        f"{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
        f'<details class="notes"><summary>What the numbers mean</summary><ul>{notes}</ul></details>'
    )


def _aligned(numeric: bool) -> str:
    return ' class="number"' if numeric else ""


def configs(evidence: Evidence) -> str:
    """Key by key what each row has otherwise than the baseline, from the first run of each that has a config."""
    base = next((_config(g) for g in evidence.groups if g.row.arm == evidence.baseline and _config(g)), {})
    if not base:
        return "<p>The baseline has no run with a config yet.</p>"
    lines = []
    for group in evidence.groups:
        own = _config(group)
        if group.row.arm == evidence.baseline and not evidence.table.varied:
            continue
        changed = sorted(key for key in {*base, *own} if base.get(key) != own.get(key)) if own else []
        if not changed:
            what = "the same as the baseline" if own else "no config yet"
            lines.append(f'<tr><th scope="row">{escape(group.name)}</th><td class="quiet">{what}</td></tr>')
            continue
        changes = "".join(_change(key, _value(base, key), _value(own, key)) for key in changed)
        lines.append(f'<tr><th scope="row">{escape(group.name)}</th><td class="changes">{changes}</td></tr>')
    whole = "\n".join(f"{key}: {_value(base, key)}" for key in base)
    head = f"<tr><th>arm</th><th>key: value in {escape(evidence.baseline)} → value here</th></tr>"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Differences of configs"><table class="plain">'
        f"<thead>{head}</thead><tbody>{''.join(lines)}</tbody></table></div><details>"
        f"<summary>The whole config of {escape(evidence.baseline)}</summary><pre>{escape(whole)}</pre></details>"
    )


def _change(key: str, old: str, new: str) -> str:
    return f"<div><code>{escape(key)}</code> <span>{escape(old)} → <b>{escape(new)}</b></span></div>"


def _config(group: Group) -> dict[str, Any]:
    found = first_config(run.folder for run in group.runs)
    return {key: value for key, value in found.items() if key.partition(".")[0] not in _NOT_COMPARED}


def _value(config: Mapping[str, Any], key: str) -> str:
    return _text(config[key]) if key in config else _ABSENT


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def failures(evidence: Evidence) -> str:
    """Every run that is not finished, with what it said; first those that will not go on."""
    found = [(group.name, run.record, evidence.steps(run)) for group, run in evidence.runs()]
    found += [(_other(record), record, (record.summary and record.summary.step) or 0) for record in evidence.others]
    found = [each for each in found if not each[1].finished]
    found.sort(key=lambda each: each[1].state in GOING_ON)
    if not found:
        return "<p>Every planned run has finished.</p>"
    lines = []
    for name, record, step in found[:_MOST_FAILURES]:
        folder = evidence.directory / record.planned.run_id
        error = _error(folder / "error.txt") if record.state == "failed" else ""
        lines.append(
            f'<tr><th scope="row">{escape(name)}</th><td class="number">{record.planned.seed}</td>'
            f'<td><span class="state {escape(record.state.split()[0], quote=True)}">{escape(record.state)}</span></td>'
            f'<td class="number">{step:,}</td>'
            f'<td class="why">{escape(record.reason) or _ABSENT}{error}</td>'
            f"<td><code>{escape(record.planned.run_id)}</code></td></tr>"
        )
    more = len(found) - _MOST_FAILURES
    rest = f"<p>… and {more:,} more: see <code>wm status</code>.</p>" if more > 0 else ""
    names = {"arm": False, "seed": True, "state": False, "step": True, "why": False, "run": False}
    head = "".join(f"<th{_aligned(numeric)}>{name}</th>" for name, numeric in names.items())
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Runs that are not finished"><table class="plain">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>{rest}"
    )


def _other(record: Record) -> str:
    settings = ", ".join(f"{key.rpartition('.')[2]} {_text(value)}" for key, value in record.planned.settings.items())
    return f"{record.planned.arm} ({record.planned.role}: {settings})"


def _error(path: Any) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").rstrip().split("\n")
    except OSError:
        return ""
    text = "\n".join(lines[-_TRACEBACK:])
    return f"<details><summary>{escape(lines[-1][:160])}</summary><pre>{escape(text)}</pre></details>"


def manifest(evidence: Evidence) -> str:
    """What the table was made from, key by key."""
    lines = []
    for key, value in evidence.table.manifest.items():
        if key == "notes":
            continue
        name = key.replace("_", " ").replace("wm version", "wmresearch")
        lines.append(f"<dt>{escape(name)}</dt><dd>{escape(_said(value)) or _ABSENT}</dd>")
    return f"<dl>{''.join(lines)}</dl>"


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_said(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_said, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def gallery(made: Sequence[Made]) -> str:
    """A place for each figure that was drawn, and the reasons for the others."""
    drawn = "".join(
        f'<figure data-figure="{escape(figure.name)}"><img alt="{escape(figure.title)}"><figcaption><b>'
        f"{escape(figure.title)}.</b> {escape(figure.caption)}</figcaption></figure>"
        for figure in made
        if figure.svg
    )
    rest = "".join(f"<li>{escape(f.title)}: {escape(f.missing)}</li>" for f in made if f.missing)
    missing = f"<details><summary>Not drawn, and why</summary><ul>{rest}</ul></details>" if rest else ""
    return f'<div class="gallery">{drawn}</div>{missing}'

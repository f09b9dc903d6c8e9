"""The report page: one HTML file that needs neither network nor server. `wm report` writes it."""

from __future__ import annotations

import base64
import gzip
import json
import time
from collections.abc import Sequence
from html import escape
from importlib.resources import files as package_files
from pathlib import Path
from string import Template

from wmresearch.reports import page_tables, page_words
from wmresearch.reports.evidence import Evidence
from wmresearch.reports.figures_sweep import Made
from wmresearch.reports.page_data import page_data
from wmresearch.training.files import finite


def build_page(evidence: Evidence, made: Sequence[Made], refresh: float | None = None) -> str:
    """The page; `refresh`: it reads itself again after so many seconds."""
    manifest = evidence.table.manifest
    made_from = [
        *manifest["corpus"][:1],
        *(f"commit {commit[:12]}" for commit in manifest["commits"][:1]),
        time.strftime("made %Y-%m-%d %H:%M UTC", time.gmtime()),
    ]
    parts = {
        "title": escape(evidence.table.sweep),
        "made_from": escape(" · ".join(made_from)),
        "refresh": "" if refresh is None else f"{refresh:g}",
        "tiles": _tiles(evidence),
        "summary": "".join(f"<li>{escape(line)}</li>" for line in page_words.sentences(evidence)),
        "table": page_tables.table(evidence),
        "gallery": page_tables.gallery(made),
        "configs": page_tables.configs(evidence),
        "failures": page_tables.failures(evidence),
        "manifest": page_tables.manifest(evidence),
        "style": _asset("page.css"),
        "script": "\n".join(_asset(name) for name in ("tools.js", "plots.js", "page.js")),
        "data": packed(json.dumps(finite(page_data(evidence, made)), ensure_ascii=False, allow_nan=False)),
        "plotly": packed(_plotly()),
        "licence": escape(_licence()),
    }
    return Template(_asset("page.html")).substitute(parts)


def _tiles(evidence: Evidence) -> str:
    return "".join(
        f'<div class="tile"><dt>{escape(what)}</dt><dd>{escape(number)}</dd><dd class="quiet">{escape(more)}</dd></div>'
        for what, number, more in page_words.tiles(evidence)
    )


def packed(text: str) -> str:
    """Gzip and base64: what the page unpacks by itself; no name in it can end the element that holds it."""
    return base64.b64encode(gzip.compress(text.encode("utf-8"), 9, mtime=0)).decode("ascii")


def _asset(name: str) -> str:
    return package_files("wmresearch.reports").joinpath("assets", name).read_text(encoding="utf-8")


def _plotly() -> str:
    """plotly.js, from the installed package."""
    return package_files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")


def _licence() -> str:
    """The licence that asks to stand beside it."""
    from importlib.metadata import files

    for path in files("plotly") or ():
        if path.name.startswith("LICENSE"):
            return Path(str(path.locate())).read_text(encoding="utf-8")
    return "plotly.js: MIT licence"

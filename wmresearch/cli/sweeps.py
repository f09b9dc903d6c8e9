"""`wm status` and `wm table`: what is known of a sweep."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


class TableFormat(enum.StrEnum):
    md = "md"
    csv = "csv"
    tex = "tex"
    json = "json"


@app.command(epilog="Example: `wm status runs/quickstart`")
def status(directory: Annotated[Path, typer.Argument(metavar="DIR", help="A sweep's directory.")]) -> None:
    """Each run of a sweep: state, step, loss, speed, time left."""
    from wmresearch.reports.listings import status_listing

    sys.stdout.write(status_listing(directory))


@app.command(epilog="Example: `wm table runs/quickstart --format tex`")
def table(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A sweep's directory.")],
    form: Annotated[TableFormat, typer.Option("--format", help="How it is written.")] = TableFormat.md,
    heads: Annotated[
        bool, typer.Option("--heads", help="Ranks and norms of the heads' maps instead of costs.")
    ] = False,
    keep: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Also keep it there in every form, with what it is made from.")
    ] = None,
) -> None:
    """The paper table of a sweep: means over seeds with intervals, paired differences, costs."""
    if heads:
        from wmresearch.reports.heads import render_heads

        sys.stdout.write(render_heads(directory, form.value))
        return
    from wmresearch.reports.table import build_table, render

    found = build_table(directory)
    if keep is not None:
        from wmresearch.reports.keep import keep_table

        keep_table(found, directory, keep)
    sys.stdout.write(render(found, form.value))

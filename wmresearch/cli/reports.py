"""`wm report`: a sweep as one HTML page, and its figures."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command(epilog="Example: `wm report runs/quickstart`")
def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A sweep's directory.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page; DIR/report/index.html unless given. Figures beside it."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Make it anew until every run has ended.")] = False,
    every: Annotated[float, typer.Option(min=1.0, help="Seconds from one page to the next with --watch.")] = 30.0,
) -> None:
    """One self-contained HTML page of a sweep, and its figures as svg and png. Stop `--watch` with Ctrl-C."""
    from wmresearch.reports.page_files import write_report

    while True:
        began = time.monotonic()
        written = write_report(directory, out, every if watch else None)
        if not watch or not written.goes_on:
            break
        sys.stderr.write(f"{written.page}: {written.summary}; again in {every:g} s\n")
        time.sleep(max(0.0, every - (time.monotonic() - began)))
    for figure in written.missing:
        sys.stderr.write(f"not drawn: {figure.title} ({figure.missing})\n")
    sys.stderr.write(f"{written.summary}; {len(written.figures)} files of figures in {written.folder}\n")
    sys.stdout.write(f"{written.page}\n")

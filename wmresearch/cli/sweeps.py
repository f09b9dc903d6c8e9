"""`wm status` and `wm table`: what is known of a sweep."""

from __future__ import annotations

import enum
import sys
import time
from contextlib import nullcontext
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
def status(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A sweep's directory.")],
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew until every run has ended.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds from one look to the next with --watch.")] = 2.0,
) -> None:
    """Each run of a sweep: state, step, loss, speed, time left. Stop `--watch` with Ctrl-C; the sweep goes on."""
    from wmresearch.reports.listings import status_listing, status_screen

    if not watch:
        sys.stdout.write(status_listing(directory))
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console, shown = Console(highlight=False), ""
    with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
        while True:
            text, goes_on = status_screen(directory, console.height - 1)
            counts = text.partition("\n")[0]
            if live is not None:
                live.update(Text(text.rstrip(), no_wrap=True, overflow="ellipsis"), refresh=True)
            elif counts != shown:  # into a file: a line where states have changed
                console.print(counts, soft_wrap=True)
            if not goes_on:
                break
            shown = counts
            time.sleep(every)


@app.command(epilog="Example: `wm table runs/quickstart --format tex`")
def table(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Directories of sweeps, one or more.")],
    form: Annotated[TableFormat, typer.Option("--format", help="How it is written.")] = TableFormat.md,
    columns: Annotated[
        str,
        typer.Option(
            metavar="NAME,…",
            help="The columns: names as in `--format json`, keys of the config (model.d_mlp), and what runs measured"
            " (train_loss, wall_seconds, stable_rank). csv and json always hold the usual ones too.",
        ),
    ] = "",
    sort: Annotated[str, typer.Option(metavar="NAME", help="Sort rows by a column; -NAME from high to low.")] = "",
    group: Annotated[str, typer.Option(metavar="NAME", help="Rows with one value of a column stand together.")] = "",
    heads: Annotated[
        bool, typer.Option("--heads", help="Ranks and norms of the heads' maps instead of costs; of one sweep.")
    ] = False,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Also keep it there in every form, with what it is made from; of one sweep."),
    ] = None,
) -> None:
    """The paper table of sweeps: means over seeds with intervals, paired differences, costs."""
    from wmresearch.reports.table import View, build_table, render

    if len(directories) > 1 and (heads or keep is not None):
        raise typer.BadParameter("expected one directory with --heads or --keep", param_hint="DIR...")
    view = View(tuple(name.strip() for name in columns.split(",") if name.strip()), sort.strip(), group.strip())
    if heads:
        from wmresearch.reports.heads import render_heads

        if view.keys:
            raise typer.BadParameter("--heads has its own columns: expected no --columns, --sort or --group")
        sys.stdout.write(render_heads(directories[0], form.value))
        return
    found = build_table(*directories, view=view)
    if keep is not None:
        from wmresearch.reports.keep import keep_table

        keep_table(found, directories[0], keep)
    sys.stdout.write(render(found, form.value))

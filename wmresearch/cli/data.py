"""`wm data`: corpora."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from wmresearch.terminal import ProgressLine

app = typer.Typer(no_args_is_help=True, help="Corpora: what there is, and getting one ready.")


@app.command("list", epilog="Example: `wm data list`")
def data_list() -> None:
    """Corpora that are prepared on this machine, and those that can be."""
    from wmresearch.data import list_corpora
    from wmresearch.reports.listings import corpora_listing

    sys.stdout.write(corpora_listing(list_corpora()))


@app.command("prepare", epilog="Example: `wm data prepare stdlib/small`")
def data_prepare(
    name: Annotated[str, typer.Argument(metavar="NAME|PATH", help="stdlib, stdlib/small, a TFDS name, or a path.")],
) -> None:
    """Get a corpus ready: read, split, and kept in the cache folder."""
    from wmresearch.data import prepare
    from wmresearch.reports.listings import corpora_listing

    line = ProgressLine()
    row = prepare(name, report=lambda message: line.update(message, force=True))
    line.close()
    sys.stdout.write(corpora_listing([row]))

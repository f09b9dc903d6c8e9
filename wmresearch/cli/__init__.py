"""`wm`: parse, call, print. Heavy imports stand inside the commands, so that `wm --help` answers at once."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from wmresearch.cli import data, models, reports, sweeps, training, wandb
from wmresearch.terminal import explain, leave_others

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Language models whose attention heads write through **W_M = W_V W_O**, and sweeps that compare them.",
)
for part in (training, sweeps, reports, models, wandb):
    app.add_typer(part.app)
app.add_typer(data.app, name="data")


def main() -> NoReturn:
    """The entry point: what is wrong with a request is said without a traceback."""
    try:
        app()
    except Exception as error:
        leave_others(error)
        code = explain(error)
        if code is None:
            raise
        sys.exit(code)
    sys.exit(0)

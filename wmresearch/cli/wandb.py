"""`wm dashboard` and `wm sync`: what people see in W&B."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from wmresearch.terminal import ProgressLine

app = typer.Typer()


@app.command(epilog="Example: `wm dashboard runs/quickstart --dry-run`")
def dashboard(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A sweep's directory.")],
    entity: Annotated[str | None, typer.Option(help="User or team; else the runs', else your own.")] = None,
    project: Annotated[str | None, typer.Option(help="Else the runs'.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write the same as JSON; no network.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --dry-run: write it here; stdout unless given.")
    ] = None,
) -> None:
    """A W&B workspace and report for a sweep: its panels in sections, runs grouped by arm; again: the same, renewed."""
    from wandb import Error as WandbError

    from wmresearch.reports.dashboard import make_dashboard, place_of, save
    from wmresearch.reports.wandb_sync import trouble_with_server

    place = place_of(directory, entity, project)
    if dry_run or out is not None:
        text = json.dumps(make_dashboard(directory, place).plain(), indent=2, ensure_ascii=False) + "\n"
        if out is None:
            sys.stdout.write(text)
        else:
            out.write_text(text, encoding="utf-8")
        return
    trouble = trouble_with_server()
    if trouble is not None:
        print(f"wm: {trouble}; `wm dashboard {directory} --dry-run` writes it without a network", file=sys.stderr)
        raise typer.Exit(1)
    try:
        saved = save(directory, make_dashboard(directory, place.of_user()))
    except WandbError as error:
        print(f"wm: W&B did not take it ({error}); start it again", file=sys.stderr)
        raise typer.Exit(1) from None
    for name, address in saved.items():
        print(f"{name}: {address}")


@app.command(epilog="Example: `wm sync runs/quickstart --dry-run`")
def sync(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a sweep or of one run.")],
    again: Annotated[bool, typer.Option("--again", help="Also what is uploaded already, recorded anew.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what there is, and upload nothing.")] = False,
) -> None:
    """Upload what was recorded for W&B offline; start it again to go on."""
    from wmresearch.reports.wandb_sync import read_records
    from wmresearch.reports.wandb_sync import sync as upload

    if dry_run:
        for state, n in Counter(record.state for record in read_records(directory)).items():
            print(f"{n} {state}")
        return
    line = ProgressLine()
    done = upload(directory, again=again, report=line.update)
    line.close()
    parts = [f"{len(done.uploaded)} run{'s' * (len(done.uploaded) != 1)} uploaded"]
    parts += [f"{len(done.rebuilt)} recorded again from their directories"] if done.rebuilt else []
    parts += [f"{len(done.before)} were uploaded before"] if done.before else []
    parts += [f"{len(done.training)} are being trained: {', '.join(done.training)}"] if done.training else []
    print("; ".join(parts))
    if done.left:
        named = ", ".join([*done.left[:5], *(["…"] if len(done.left) > 5 else [])])
        print(f"{len(done.left)} left: {named}\n  {done.trouble}\ngo on with: wm sync {directory}")
        raise typer.Exit(1)

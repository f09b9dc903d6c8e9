"""`wm train` and `wm sweep`: they train."""

from __future__ import annotations

import enum
import os
import shlex
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from wmresearch.cli import slurm
from wmresearch.cli.arguments import Overrides
from wmresearch.reports.numbers import duration
from wmresearch.reports.progress import run_progress, steps_done, sweep_progress
from wmresearch.terminal import ProgressLine, hide_callbacks, only_results_on_stdout

app = typer.Typer()


class Launcher(enum.StrEnum):
    local = "local"
    slurm = "slurm"


class Export(enum.StrEnum):
    wandb = "wandb"


@app.command(epilog="Example: `wm train configs/base/tiny.yaml training.steps=50 --dir runs/first`")
def train(
    config: Annotated[str, typer.Argument(help="A run config (YAML) or the name of a preset.")],
    overrides: Overrides = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where the run lies; runs/CONFIG/RUN-ID unless given.")
    ] = None,
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Of several processes: where process 0 listens.")
    ] = None,
    processes: Annotated[int | None, typer.Option(help="Of several processes: how many there are.")] = None,
    process: Annotated[int | None, typer.Option(help="Of several processes: which one this is, from 0.")] = None,
    wait: Annotated[int, typer.Option(min=1, metavar="SECONDS", help="For all processes to start.")] = 300,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew; what is in DIR is moved beside it.")] = False,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="On GPUs: the same bits at each start.")
    ] = False,
) -> None:
    """Train one run (or go on with it), alone or as one of several processes with `parallel.mesh`.

    Each process is given the same CONFIG and DIR, a folder that all of them see. In a SLURM job step with several
    tasks, and on a TPU with several hosts, they find each other.
    """
    from wmresearch.config import load_run, run_id
    from wmresearch.data import corpus_digest
    from wmresearch.parallel.processes import find_group
    from wmresearch.training.custom_kind import ask_custom

    hide_callbacks()
    group = find_group(coordinator, processes, process)
    if deterministic:
        os.environ["WMRESEARCH_DETERMINISTIC"] = "1"
    loaded = load_run(config, overrides or [], ask_custom)
    line = ProgressLine()
    if directory is None:
        identity = run_id(loaded, corpus_digest(loaded.data, lambda message: line.update(message, force=True)))
        directory = Path("runs") / Path(config).stem / identity
    from wmresearch.parallel.agreement import is_first
    from wmresearch.reports.listings import run_listing
    from wmresearch.training.loop import train as train_run

    with nullcontext() if group is None else only_results_on_stdout():
        report = lambda progress: line.update(run_progress(progress))
        summary = train_run(loaded, directory, report=report, group=group, wait_seconds=wait, fresh=fresh)
    line.close()
    if is_first():
        sys.stdout.write(run_listing(directory, summary))
    raise typer.Exit({"finished": 0, "preempted": 75}.get(summary["state"], 1))


@app.command(epilog="Example: `wm sweep configs/sweeps/quickstart.yaml --dry-run`")
def sweep(
    file: Annotated[str, typer.Argument(metavar="SWEEP", help="A sweep file (YAML) or the name of one in configs/.")],
    overrides: Overrides = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="Where the runs lie; runs/NAME unless given.")] = None,
    launcher: Annotated[Launcher, typer.Option(help="Where runs are trained.")] = Launcher.local,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="At once: worker processes (1 unless given), or SLURM jobs (no limit).")
    ] = None,
    partition: slurm.Partition = None,
    account: slurm.Account = None,
    gres: slurm.Gres = None,
    minutes: slurm.Minutes = None,
    cpus: slurm.Cpus = None,
    memory: slurm.Memory = None,
    more: slurm.More = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and what they take; train none.")] = False,
    measure: Annotated[bool, typer.Option("--measure", help="With --dry-run: time a step of each arm.")] = False,
    export: Annotated[
        Export | None, typer.Option(help="Write W&B sweeps, whose agents run `wm train`, and train none.")
    ] = None,
) -> None:
    """Train every run of a sweep that is missing; start it again to go on."""
    from wmresearch.sweeps.launchers import LocalLauncher
    from wmresearch.sweeps.plan import extended, make_plan, results_in
    from wmresearch.sweeps.rounds import train_all
    from wmresearch.sweeps.slurm import SlurmLauncher
    from wmresearch.sweeps.store import settings_text, statuses

    asked = slurm.Asked(partition, account, gres, minutes, cpus, memory, more)
    options = asked.options(launcher, jobs)
    line = ProgressLine()
    plan = make_plan(file, overrides or [], lambda message: line.update(message, force=True))
    directory = directory or Path("runs") / plan.sweep.name
    if dry_run:
        from wmresearch.reports.planned import plan_listing

        say = (lambda message: line.update(message, force=True)) if measure else None
        listing = plan_listing(extended(plan, results_in(directory)), directory, jobs or 1, say)
        line.close()
        sys.stdout.write(listing)
        return
    if export is not None:
        from wmresearch.sweeps.wandb_export import export_to_wandb

        line.close()
        sys.stdout.write(export_to_wandb(plan, file, directory))
        return
    started = time.monotonic()
    before = steps_done(directory) if (directory / "sweep.json").exists() else 0

    def launch() -> bool:
        engine = LocalLauncher(directory, jobs or 1) if options is None else SlurmLauncher(directory, options)
        progress = lambda: sweep_progress(directory, plan.sweep.name, started, before) + slurm.note(engine)
        return engine.run(lambda: line.update(progress()))

    completed = train_all(plan, directory, launch)
    line.close()
    runs = statuses(directory)
    finished = sum(run.state == "finished" for run in runs)
    took = duration(time.monotonic() - started)
    print(f"{plan.sweep.name}: {finished} of {len(runs)} runs finished in {directory} ({took})")
    rest = [run for run in runs if run.state != "finished"]
    for run in rest:
        which = f"{run.arm} {settings_text(run.settings)} seed {run.seed} ({run.run_id})"
        print(f"  {run.state}: {which} {run.reason or ''}".rstrip())
    how = ["--launcher", "slurm", *asked.flags()] if options else []
    how += ["--jobs", str(jobs)] if jobs is not None and (options or jobs > 1) else []
    again = shlex.join(["wm", "sweep", file, *(overrides or []), "--dir", str(directory), *how])
    if not completed:
        if options is not None:
            print(slurm.parting(SlurmLauncher(directory, options), directory))
        print(f"interrupted; go on with: {again}")
        raise typer.Exit(75)
    if any(run.state != "diverged" for run in rest):
        print(f"run what is missing with: {again}")
        raise typer.Exit(1)
    print(f"table: wm table {directory}")

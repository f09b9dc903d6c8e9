"""`wm`: parse, call, print. Heavy imports stand inside the commands, so that `wm --help` answers at once."""

from __future__ import annotations

import enum
import json
import os
import shlex
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from wmresearch.reports.numbers import duration, quantity
from wmresearch.reports.progress import run_progress, steps_done, sweep_progress
from wmresearch.terminal import ProgressLine, explain, leave_others, only_results_on_stdout

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Language models whose attention heads write through **W_M = W_V W_O**, and sweeps that compare them.",
)
data_app = typer.Typer(no_args_is_help=True, help="Corpora: what there is, and getting one ready.")
app.add_typer(data_app, name="data")

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Config values to change, by dotted key.")
]


class TableFormat(enum.StrEnum):
    md = "md"
    csv = "csv"
    tex = "tex"
    json = "json"


class SpectrumFormat(enum.StrEnum):
    md = "md"
    csv = "csv"
    json = "json"
    png = "png"


class Launcher(enum.StrEnum):
    local = "local"


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
    jobs: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and train none.")] = False,
) -> None:
    """Train every run of a sweep that is missing; start it again to go on."""
    from wmresearch.reports.listings import plan_listing
    from wmresearch.sweeps.launchers import LocalLauncher
    from wmresearch.sweeps.plan import make_plan
    from wmresearch.sweeps.store import settings_text, statuses, write_plan

    del launcher  # there is one so far
    line = ProgressLine()
    plan = make_plan(file, overrides or [], lambda message: line.update(message, force=True))
    directory = directory or Path("runs") / plan.sweep.name
    if dry_run:
        line.close()
        sys.stdout.write(plan_listing(plan, directory))
        return
    write_plan(directory, plan)
    started = time.monotonic()
    before = steps_done(directory)
    completed = LocalLauncher(directory, jobs).run(
        lambda: line.update(sweep_progress(directory, plan.sweep.name, started, before))
    )
    line.close()
    runs = statuses(directory)
    finished = sum(run.state == "finished" for run in runs)
    took = duration(time.monotonic() - started)
    print(f"{plan.sweep.name}: {finished} of {len(runs)} runs finished in {directory} ({took})")
    rest = [run for run in runs if run.state != "finished"]
    for run in rest:
        which = f"{run.arm} {settings_text(run.settings)} seed {run.seed} ({run.run_id})"
        print(f"  {run.state}: {which} {run.reason or ''}".rstrip())
    workers = ["--jobs", str(jobs)] if jobs > 1 else []
    again = shlex.join(["wm", "sweep", file, *(overrides or []), "--dir", str(directory), *workers])
    if not completed:
        print(f"interrupted; go on with: {again}")
        raise typer.Exit(75)
    if any(run.state != "diverged" for run in rest):
        print(f"run what is missing with: {again}")
        raise typer.Exit(1)
    print(f"table: wm table {directory}")


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
) -> None:
    """The paper table of a sweep: means over seeds with intervals, paired differences, costs."""
    if heads:
        from wmresearch.reports.heads import render_heads

        sys.stdout.write(render_heads(directory, form.value))
        return
    from wmresearch.reports.table import build_table, render

    sys.stdout.write(render(build_table(directory), form.value))


@app.command(epilog="Example: `wm spectrum runs/first`")
def spectrum(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")],
    step: Annotated[int | None, typer.Option(help="Of the checkpoint at this step; the newest unless given.")] = None,
    form: Annotated[
        SpectrumFormat | None,
        typer.Option("--format", help="How it is written: by the ending of --out unless given, else md."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write it here; else stdout, and for a png spectrum.png in the run."),
    ] = None,
    compare: Annotated[Path | None, typer.Option(metavar="RUN2", help="Another run, side by side.")] = None,
    drop_heads: Annotated[
        str | None,
        typer.Option(metavar="K[,K...]", help="Instead: the validation loss without the K heads of least ‖M‖_F."),
    ] = None,
    truncate: Annotated[
        str | None,
        typer.Option(metavar="R[,R...]", help="Instead: the validation loss with each map cut to rank R."),
    ] = None,
) -> None:
    """Ranks and norms of each head's map W_M, beside those before training; what the model loses without them."""
    from wmresearch.reports.spectrum_request import SpectrumRequest, answer

    line = ProgressLine()
    request = SpectrumRequest(directory, step, form and form.value, out, compare, drop_heads, truncate)
    text = answer(request, lambda message: line.update(message))
    line.close()
    sys.stdout.write(text)


@app.command(epilog="Example: `wm sample runs/first --prompt 'def ' --tokens 40`")
def sample(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")],
    prompt: Annotated[str, typer.Option(help="The text to go on from; a line break unless given.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="How many to generate.")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of the softmax; 0 takes the likeliest token.")] = 1.0,
    top: Annotated[int | None, typer.Option(min=1, help="Draw only from so many likeliest tokens.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    step: Annotated[int | None, typer.Option(help="Of the checkpoint at this step; the newest unless given.")] = None,
) -> None:
    """Text from a run."""
    from wmresearch.model.generation import Sampling
    from wmresearch.reports.samples import sample as generate

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    write(prompt)
    made = generate(directory, prompt, tokens, Sampling(temperature, top), seed, step, write)
    write("\n")
    speed = f", {quantity(made.tokens_per_second)} tokens/s" if made.tokens_per_second else ""
    print(f"{made.tokens} tokens{speed}, cache {quantity(made.cache_bytes)}B", file=sys.stderr)


@app.command(epilog="Example: `wm bench configs/base/tiny.yaml --rounds 2`")
def bench(
    config: Annotated[str, typer.Argument(help="A run config (YAML) or the name of a preset.")] = "nanogpt-cpu",
    overrides: Overrides = None,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements; their median counts.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Training speed on this machine, as a share of its matrix-product rate."""
    from wmresearch.config import load_run
    from wmresearch.reports.bench import bench as measure
    from wmresearch.reports.bench import bench_listing, parameters_of
    from wmresearch.training.custom_kind import ask_custom

    loaded = load_run(config, overrides or [], ask_custom)
    line = ProgressLine()
    found = measure(loaded, rounds, line.update)
    line.close()
    if as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        sys.stdout.write(bench_listing(found, parameters_of(loaded)))


@app.command(epilog="Example: `wm count llama3-70b --mesh data=2,head=8`")
def count(
    config: Annotated[str, typer.Argument(metavar="CONFIG|PRESET", help="A run config (YAML) or a preset's name.")],
    overrides: Overrides = None,
    mesh: Annotated[
        str | None,
        typer.Option(metavar="data=N,head=N", help="Also what each of so many devices has; else the config's."),
    ] = None,
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Where there are so many, a training step too.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Parameters, FLOPs, cache and all-reduce bytes of a model, part by part; on a mesh, where they lie."""
    from wmresearch.reports.count import count as counted

    line = ProgressLine()
    compiling = lambda: line.update("compiling a training step (--no-compile: the prediction alone)", force=True)
    text = counted(config, overrides or [], mesh, compiling if compiled else None, as_json)
    line.close()
    sys.stdout.write(text)


@data_app.command("list", epilog="Example: `wm data list`")
def data_list() -> None:
    """Corpora that are prepared on this machine, and those that can be."""
    from wmresearch.data import list_corpora
    from wmresearch.reports.listings import corpora_listing

    sys.stdout.write(corpora_listing(list_corpora()))


@data_app.command("prepare", epilog="Example: `wm data prepare stdlib/small`")
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


if __name__ == "__main__":
    main()

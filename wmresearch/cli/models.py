"""`wm spectrum`, `sample`, `bench` and `count`: what is known of a model."""

from __future__ import annotations

import enum
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from wmresearch.cli.arguments import Overrides
from wmresearch.reports.numbers import quantity
from wmresearch.terminal import ProgressLine

app = typer.Typer()


class SpectrumFormat(enum.StrEnum):
    md = "md"
    csv = "csv"
    json = "json"
    png = "png"


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

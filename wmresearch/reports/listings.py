"""Plain listings for a terminal: a sweep's state, a model's cost, corpora, one run's result."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from wmresearch.config import RunConfig
from wmresearch.data import CorpusRow, symbols_of
from wmresearch.reports.numbers import duration, flops, quantity
from wmresearch.sweeps.store import ENDED, RunStatus, settings_text, statuses


def status_listing(directory: Path) -> str:
    """Each run of a sweep: state, step, loss, speed, time left."""
    return _listed(statuses(directory))


_FIRST = ("running", "running (silent)", "failed", "diverged", "preempted", "pending", "finished")
"""The order in which runs are shown where there is no room for all."""


def status_screen(directory: Path, lines: int) -> tuple[str, bool]:
    """How many runs are in which state, and as many runs as go into so many lines; and whether some may still go on."""
    runs = sorted(statuses(directory), key=lambda run: _FIRST.index(run.state))
    counts = Counter(run.state for run in runs)
    said = ", ".join(f"{counts[state]} {state}" for state in _FIRST if counts[state])
    text = [f"{len(runs)} runs: {said}", *_listed(runs).splitlines()]
    if len(text) > max(lines, 4):
        kept = text[: max(lines, 4) - 1]
        text = [*kept, f"… and {len(text) - len(kept)} more"]
    return "\n".join(text) + "\n", any(run.state not in ENDED for run in runs)


def _listed(runs: Sequence[RunStatus]) -> str:
    columns = ("run", "arm", "settings", "seed", "role", "state", "step", "nats/token", "tokens/s", "time left")
    rows = []
    tunes = any(run.role == "tune" for run in runs)
    for run in runs:
        left = run.seconds_left if run.state == "running" else None
        rows.append((
            run.run_id, run.arm, settings_text(run.settings), run.seed, run.role if tunes else "", run.state,
            f"{run.step}/{run.steps or '?'}",
            "" if run.loss is None else f"{run.loss:.4f}",
            "" if run.tokens_per_second is None else quantity(run.tokens_per_second),
            "" if left is None else duration(left), run.reason or "",
        ))  # fmt: skip
    return aligned((*columns, "reason"), rows, right=6)


def cost_data(config: RunConfig) -> dict[str, Any]:
    """What a model costs, as plain data."""
    from wmresearch.model.cost import head_output_weights, model_cost

    cost = model_cost(config.model, symbols_of(config.data))
    return {
        "parameters": cost.parameters,
        "head_output_parameters": cost.head_output_parameters,
        "head_output_nonzeros": cost.head_output_nonzeros,
        "masked_dense": cost.masked_dense,
        "flops_per_token": cost.training_flops_per_token,
        "parts": [vars(part) for part in cost.parts],
        "head_output_weights": [vars(weight) for weight in head_output_weights(config.model)],
    }


def cost_listing(config: RunConfig) -> str:
    """Parameters, FLOPs, cache and all-reduce bytes of a model, part by part."""
    from wmresearch.head_output import kind_of
    from wmresearch.model.cost import bytes_of, head_output_weights, model_cost

    model = config.model
    cost = model_cost(model, symbols_of(config.data))
    number = bytes_of(model.dtype)
    columns = ("part", "parameters", "share", "forward FLOPs/token", "cache bytes/token", "all-reduce bytes/token")
    figures = [
        (
            part.name,
            part.parameters,
            part.forward_flops_per_token,
            part.cache_numbers_per_token * number,
            part.all_reduce_numbers_per_token * number,
        )
        for part in cost.parts
    ]
    _, *numbers = zip(*figures, strict=True)
    totals = [sum(column) for column in numbers]
    rows = [
        (
            name,
            f"{parameters:,}",
            f"{parameters / cost.parameters:.1%}",
            f"{forward:,.0f}",
            f"{cache:,}",
            f"{traffic:,}",
        )
        for name, parameters, forward, cache, traffic in [*figures, ("all", *totals)]
    ]
    lines = [aligned(columns, rows, right=1), f"head output `{kind_of(model.head_output)}`, {model.n_layers} layers:"]
    for weight in head_output_weights(model):
        shape = " × ".join(map(str, weight.shape))
        lines.append(
            f"  {weight.symbol:5} {shape} = {weight.per_layer:,} parameters a layer, {weight.all_layers:,} over "
            f"{model.n_layers} layers, {weight.all_layers / cost.parameters:.1%} of the model"
            + (f", {weight.nonzeros_all_layers:,} not held at zero" * (weight.nonzeros_all_layers < weight.all_layers))
        )
    if cost.masked_dense:
        lines.append("  masked dense: what is held at zero is computed with (saves compute: no)")
    training = flops(cost.training_flops_per_token)
    lines.append(f"training: {training} a token at context {model.context:,} (forward and backward)\n")
    return "\n".join(lines)


def corpora_listing(corpora: Sequence[CorpusRow]) -> str:
    """Corpora that are prepared on this machine, and those that can be."""
    rows = [
        (row.name, row.kind, ", ".join(f"{name} {quantity(size.n_bytes)}B" for name, size in row.splits.items()),
         (row.digest or "")[:12], row.where)
        for row in corpora
    ]  # fmt: skip
    return aligned(("corpus", "kind", "splits", "digest", "where, or how to get it"), rows)


def run_listing(directory: Path, summary: dict[str, Any]) -> str:
    """How one run ended."""
    lines = [f"{summary['state']}: {directory}"] + ([f"  {summary['reason']}"] if summary["reason"] else [])
    for key, unit, form in (
        ("validation_loss", "nats/token (whole split)", ".4f"),
        ("test_loss", "nats/token (whole split)", ".4f"),
        ("bits_per_byte", "bits/byte", ".4f"),
        ("recall_accuracy", "", ".3f"),
        ("induction_accuracy", "", ".3f"),
        ("parameters", "", ",d"),
        ("tokens_per_second", "tokens/s", ",.0f"),
        ("wall_seconds", "s", ",.1f"),
    ):
        if summary.get(key) is not None:  # a run of earlier days has fewer
            lines.append(f"  {key.replace('_', ' '):18} {summary[key]:{form}} {unit}".rstrip())
    return "\n".join(lines) + "\n"


def aligned(columns: Sequence[str], rows: Iterable[Sequence[object]], right: int | None = None) -> str:
    """Aligned columns; those from index `right` on hold numbers. Columns that are empty in every row are left out."""
    kept = list(rows)
    table = Table(box=None, pad_edge=False)
    shown = [index for index in range(len(columns)) if not kept or any(str(row[index]) for row in kept)]
    for index in shown:
        numeric = right is not None and index >= right and columns[index] not in ("state", "reason")
        table.add_column(columns[index], justify="right" if numeric else "left", no_wrap=True)
    for row in kept:
        table.add_row(*(str(row[index]) for index in shown))
    out = io.StringIO()
    Console(file=out, width=10_000, highlight=False, markup=False, emoji=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"

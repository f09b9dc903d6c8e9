"""The table as people see it: which columns, what stands in each cell, and the footnotes that make it citable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from wmresearch.reports import numbers
from wmresearch.reports.footnotes import footnotes
from wmresearch.reports.rows import Delta, Row, Table
from wmresearch.reports.shown import Column, Shown, setting_text
from wmresearch.reports.statistics import Estimate, PairedDifference

MARKS = {None: "", "lowest": " †", "not told apart": " ‡"}


def shown(table: Table) -> Shown:
    """The table's columns, rows and footnotes."""
    found = columns(table)
    notes = footnotes(table, [column.key for column in found])
    return Shown(table.sweep, "", found, table.rows, notes, table.starts_of_groups)


def columns(table: Table) -> list[Column]:
    """Those that were asked for, else the usual ones: keys that vary or are tuned first, what some row knows."""
    every = {column.key: column for column in every_column(table)}
    return [every[key] for key in table.view.columns or _usual(table)]


def _usual(table: Table) -> Iterator[str]:
    rows = table.rows
    compared = table.loss
    other = "test_loss" if compared == "validation_loss" else "validation_loss"
    if table.sweeps > 1:
        yield "sweep"
    yield "arm"
    yield from (*table.varied, *table.tuned_keys)
    yield from (compared, "delta", "p_holm")
    if table.margin is not None:
        yield "within"
    if table.tuned_keys:
        yield "at_baseline"
    yield from (other, "bits_per_byte")
    yield from (name for name in _TASKS if any(row.tasks and getattr(row.tasks, name).mean is not None for row in rows))
    yield from ("parameters", "head_output_parameters")
    if table.holds_zeros:
        yield "head_output_nonzeros"
    yield from ("total_rank", "flops_per_token", "training_flops") if table.finds_ranks else ("flops_per_token",)
    if any(row.reach for row in rows):
        yield from ("steps_to_reach", "flops_to_reach")
    yield from ("tokens_per_second", "seeds")
    yield from dict.fromkeys(key for row in rows for key in row.extra)
    if any(row.flags for row in rows):
        yield "flags"


_TASKS = ("recall", "induction", "gain")


def every_column(table: Table) -> Iterator[Column]:
    """All that can be asked for by name; of each key of the settings too, and of what was read besides."""
    compared = table.loss
    yield _text("sweep", "sweep", lambda row: row.sweep)
    yield _text("arm", "arm", lambda row: row.arm)
    keys = list(dict.fromkeys(key for row in table.rows for key in row.settings))
    moving = (*table.varied, *table.tuned_keys)
    yield from (setting_column(key, moving if key in moving else tuple(keys)) for key in keys)
    for name in ("validation_loss", "test_loss"):
        yield _mean(name, name.replace("_", " "), _of(name), marked=name == compared)
    yield Column(
        "delta",
        f"Δ to {table.baseline or 'baseline'}",
        lambda row: _delta(row.delta, row.n),
        lambda row: row.delta.mean if row.delta else None,
    )
    yield _number("p_holm", "p (Holm)", lambda row: row.delta.p_holm if row.delta else None, numbers.p_value)
    within = "p (within)" if table.margin is None else f"p (within {table.margin:g})"
    yield _number("within", within, lambda row: row.delta.within if row.delta else None, numbers.p_value)
    yield _mean(
        "at_baseline",
        f"at that of {table.baseline or 'baseline'}",
        lambda row: row.tuned.at_baseline if row.tuned else None,
    )
    yield _mean("bits_per_byte", "bits/byte", lambda row: row.bits_per_byte)
    for name in _TASKS:
        yield _mean(name, name, _task(name))
    for name, header, show in (
        ("learning_rate", "learning rate", lambda value: numbers.DASH if value is None else f"{value:g}"),
        ("parameters", "parameters", numbers.whole),
        ("head_output_parameters", "head outputs", numbers.whole),
        ("head_output_nonzeros", "non-zeros", numbers.whole),
        ("total_rank", "total rank", numbers.whole),
        ("flops_per_token", "cost/token", numbers.flops),
        ("training_flops", "training", numbers.flops),
        ("tokens_per_second", "tokens/s", numbers.rough),
    ):
        yield _number(name, header, _of(name), show)
    yield _number("steps_to_reach", "steps to reach", lambda row: row.reach.steps if row.reach else None, numbers.whole)
    yield _number("flops_to_reach", "FLOPs to reach", lambda row: row.reach.flops if row.reach else None, numbers.flops)
    yield Column("seeds", "seeds", lambda row: f"{row.finished}/{row.planned}", lambda row: row.finished)
    yield _text("flags", "flags", lambda row: ", ".join(row.flags))
    yield from (
        _extra_column(key) for key in dict.fromkeys(k for row in table.rows for k in row.extra) if key not in keys
    )


def _of(name: str) -> Callable[[Row], Any]:
    return lambda row: getattr(row, name)


def _task(name: str) -> Callable[[Row], Estimate | None]:
    return lambda row: getattr(row.tasks, name) if row.tasks else None


def _text(key: str, header: str, value: Callable[[Row], str]) -> Column:
    return Column(key, header, value, value, numeric=False)


def _number(key: str, header: str, value: Callable[[Row], float | None], show: Callable[[float | None], str]) -> Column:
    return Column(key, header, lambda row: show(value(row)), value)


def _mean(key: str, header: str, value: Callable[[Row], Estimate | None], marked: bool = False) -> Column:
    def cell(row: Row) -> str:
        found = value(row)
        return numbers.DASH if found is None else estimate(found) + MARKS[row.mark if marked else None]

    def order(row: Row) -> float | None:
        found = value(row)
        return None if found is None else found.mean

    return Column(key, header, cell, order)


def _extra_column(key: str) -> Column:
    """Of what the runs' own files say under a name, or of a key of their config."""
    if "." in key:
        return Column(key, key, lambda row: _extra_text(row, key), lambda row: _plain(row.extra.get(key)))
    return _mean(key, key.replace("_", " "), lambda row: row.extra.get(key))


def _extra_text(row: Row, key: str) -> str:
    value = row.extra.get(key)
    return numbers.DASH if value is None else setting_text(value)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float) else setting_text(value)


def setting_column(key: str, varied: tuple[str, ...]) -> Column:
    """Headed by the key's last word where that is enough to tell it from the others."""
    last = [other.rpartition(".")[2] for other in varied]
    name = key.rpartition(".")[2]
    header = name if last.count(name) == 1 else key
    cell = lambda row: setting_text(row.settings[key]) if key in row.settings else _extra_text(row, key)
    return Column(key, header, cell, lambda row: _plain(row.settings.get(key, row.extra.get(key))))


def estimate(found: Estimate) -> str:
    """Its mean with half of its interval."""
    return numbers.plus_minus(found.mean, half_width(found.low, found.high))


def _delta(delta: Delta | None, n: int) -> str:
    if delta is None:
        return "baseline"
    text = difference(delta)
    return f"{text} ({delta.n} pair{'s' * (delta.n != 1)})" if delta.n < n else text


def difference(found: Delta | PairedDifference) -> str:
    """The same of a difference, with its sign."""
    return numbers.plus_minus(found.mean, half_width(found.low, found.high), signed=True)


def half_width(low: float | None, high: float | None) -> float | None:
    """Of an interval, where there is one."""
    return None if low is None or high is None else (high - low) / 2

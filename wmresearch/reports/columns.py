"""The table as people see it: which columns, what stands in each cell, and the footnotes that make it citable."""

from __future__ import annotations

import json
from typing import Any

from wmresearch.reports import numbers
from wmresearch.reports.rows import Delta, Table
from wmresearch.reports.shown import Column, Shown
from wmresearch.reports.statistics import Estimate, PairedDifference


def shown(table: Table) -> Shown:
    """The table's columns, rows and footnotes."""
    return Shown(table.sweep, "", columns(table), table.rows, footnotes(table))


def columns(table: Table) -> list[Column]:
    """Columns for people: keys that vary or are tuned first, flags only where a row has one."""
    losses = [
        Column("validation loss", lambda row: estimate(row.validation_loss)),
        Column("test loss", lambda row: estimate(row.test_loss)),
    ]
    compared, other = losses if table.loss == "validation_loss" else losses[::-1]
    keys = (*table.varied, *tuned_keys(table))
    found = [Column("arm", lambda row: row.arm, numeric=False)]
    found += [setting_column(key, keys) for key in keys]
    found += [
        compared,
        Column(f"Δ to {table.baseline}", lambda row: _delta(row.delta, row.n)),
        Column("p (Holm)", lambda row: numbers.p_value(row.delta.p_holm if row.delta else None)),
        *_within(table),
        *_at_baseline(table),
        other,
        Column("bits/byte", lambda row: estimate(row.bits_per_byte)),
        *_tasks(table),
        Column("parameters", lambda row: numbers.whole(row.parameters)),
        Column("head outputs", lambda row: numbers.whole(row.head_output_parameters)),
        *_nonzeros(table),
        *_ranks(table),
        Column("cost/token", lambda row: numbers.flops(row.flops_per_token)),
        *([Column("training", lambda row: numbers.flops(row.training_flops))] if _ranks(table) else []),
        *_reach(table),
        Column("tokens/s", lambda row: numbers.rough(row.tokens_per_second)),
        Column("seeds", lambda row: f"{row.finished}/{row.planned}"),
    ]
    if any(row.flags for row in table.rows):
        found.append(Column("flags", lambda row: ", ".join(row.flags), numeric=False))
    return found


def footnotes(table: Table) -> list[str]:
    """What the numbers mean and what they were made from; then what is missing or odd."""
    made = table.manifest
    family, ranks = made["comparisons"], _ranks(table)
    same = "" if tuned_keys(table) else " and settings"
    notes = [
        "Losses in nats per token over the whole split, at the last step: mean ± half-width of the 95 % t interval.",
        *_fixed(table),
        "Seeds: n finished of planned. The means are over those n; below two there is no interval.",
        f"Δ: {_words(table.loss)} minus that of {table.baseline} with the same seed{same}; 95 % paired t interval.",
        f"p: two-sided paired t test, Holm-corrected over the {family} planned comparison{'s' * (family != 1)}.",
    ]
    notes += [*_within_notes(table), *_tuning_notes(table), *_matching_notes(table), *_reach_notes(table)]
    if _tasks(table):
        notes.append(
            "Recall: accuracy of the value after a key, mean over 2, 4, 8, … pairs. Induction: accuracy in the second"
            " copy of random symbols; gain: nats per token that it is better known than the first."
        )
    if any(row.diverged for row in table.rows):
        notes.append("A row with a diverged seed has no p: its mean is over the seeds that survived.")
    if any("no spread" in row.flags for row in table.rows):
        notes.append("No spread: the paired differences are all equal, which allows no test.")
    notes += [
        "Parameters: all, and the head outputs' own"
        + ("; non-zeros: those of the head outputs that are not held at zero." if _nonzeros(table) else "."),
        "Cost: training FLOPs, forward and backward, that the compiled program makes (masked dense counts as dense)"
        + (
            "; at the end, and of all steps together. Where heads find their ranks, means over seeds." if ranks else "."
        ),
        f"Tokens/s: median over seeds{_on(made['devices'])}.",
        _made_from(table.sweep, made),
    ]
    return notes + list(made["notes"])


def _tasks(table: Table) -> list[Column]:
    """Each shown where some row knows it."""

    def column(name: str) -> Column:
        return Column(name, lambda row: estimate(getattr(row.tasks, name)) if row.tasks else numbers.DASH)

    known = [row.tasks for row in table.rows if row.tasks]
    return [
        column(name)
        for name in ("recall", "induction", "gain")
        if any(getattr(tasks, name).mean is not None for tasks in known)
    ]


def _nonzeros(table: Table) -> list[Column]:
    """Shown where some row holds entries at zero."""
    pairs = [(row.head_output_nonzeros, row.head_output_parameters) for row in table.rows]
    if all(kept is None or kept == stored for kept, stored in pairs):
        return []
    return [Column("non-zeros", lambda row: numbers.whole(row.head_output_nonzeros))]


def _ranks(table: Table) -> list[Column]:
    """Shown where some row's heads find their ranks."""
    if all(row.total_rank is None for row in table.rows):
        return []
    return [Column("total rank", lambda row: numbers.whole(row.total_rank))]


def tuned_keys(table: Table) -> tuple[str, ...]:
    """Keys whose values were chosen for each arm."""
    chosen = [row.tuned.chosen for row in table.rows if row.tuned and row.tuned.chosen]
    return tuple(chosen[0]) if chosen else ()


def _within(table: Table) -> list[Column]:
    """Shown where the sweep states a margin."""
    if table.margin is None:
        return []
    return [
        Column(f"p (within {table.margin:g})", lambda row: numbers.p_value(row.delta.within if row.delta else None))
    ]


def _within_notes(table: Table) -> list[str]:
    found = [row.delta.resolvable for row in table.rows if row.delta and row.delta.resolvable]
    notes = []
    if table.margin is not None:
        notes.append(
            f"p (within {table.margin:g}): two one-sided paired t tests that the mean Δ is less than {table.margin:g} "
            "either way, the margin that the sweep states; Holm-corrected alike."
        )
    if found:
        least, most = (f"{value:.2g}" for value in (min(found), max(found)))
        span = least if least == most else f"{least} to {most}"
        notes.append(f"With the spread of their differences, the pairs show a Δ of {span} with a chance of 80 %.")
    return notes


def _at_baseline(table: Table) -> list[Column]:
    """Shown where values were chosen for each arm: its loss at those that the baseline chose."""
    if not tuned_keys(table):
        return []
    cell = lambda row: estimate(row.tuned.at_baseline) if row.tuned else numbers.DASH
    return [Column(f"at that of {table.baseline}", cell)]


def _reach(table: Table) -> list[Column]:
    """Shown where the sweep asks for it."""
    if all(row.reach is None for row in table.rows):
        return []
    return [
        Column("steps to reach", lambda row: numbers.whole(row.reach.steps if row.reach else None)),
        Column("FLOPs to reach", lambda row: numbers.flops(row.reach.flops if row.reach else None)),
    ]


def _tuning_notes(table: Table) -> list[str]:
    rows = [row for row in table.rows if row.tuned]
    keys = tuned_keys(table)
    if not rows or not keys:
        return []
    tried = sorted({row.tuned.tried for row in rows if row.tuned})
    tries = f"{' or '.join(map(str, tried))} tried"
    notes = [
        f"{', '.join(keys)}: chosen for each row by the mean validation loss over the tuning seeds, of {tries}.",
        "The runs shown have other seeds than those that tuned.",
        f"At that of {table.baseline}: the {_words(table.loss)} at what {table.baseline} chose.",
    ]
    if any(row.tuned and row.tuned.edges for row in rows):
        notes.append("At the edge: the best is the lowest or highest that was tried, and a better one may lie beyond.")
    if table.loss == "validation_loss":
        notes.append("The corpus has no test split: arms are compared by the kind of loss that chose their values.")
    return notes


def _matching_notes(table: Table) -> list[str]:
    changed = {row.arm: (row.adjusted, row.total_rank) for row in table.rows if row.adjusted}
    parts = [
        f"{arm} by {how['key']} = {how['after']} in place of {how['before']} ({how['budget']} {_share(how['off'])}"
        + (
            ")"
            if found is None
            else " by the total rank that it keeps; padded, and while it looks for it, it has more)"
        )
        for arm, (how, found) in changed.items()
    ]
    return [f"Matched to {table.baseline}: {'; '.join(parts)}."] if parts else []


def _share(off: float) -> str:
    return f"{off:+.2%}".replace("-", "−")


def _words(loss: str) -> str:
    return loss.replace("_", " ")


def _reach_notes(table: Table) -> list[str]:
    if not _reach(table):
        return []
    text = f"To reach: until the final validation loss of {table.baseline} with the same seed, linear between "
    return [text + f"evaluations; mean over pairs, {numbers.DASH} where one does not reach it."]


def setting_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def setting_column(key: str, varied: tuple[str, ...]) -> Column:
    """Headed by the key's last word where that is enough to tell it from the others."""
    last = [other.rpartition(".")[2] for other in varied]
    name = key.rpartition(".")[2]
    header = name if last.count(name) == 1 else key
    return Column(header, lambda row: setting_text(row.settings[key]) if key in row.settings else numbers.DASH)


def _fixed(table: Table) -> list[str]:
    settings = table.rows[0].settings if table.rows else {}
    moving = (*table.varied, *tuned_keys(table))
    fixed = [f"{key} = {setting_text(value)}" for key, value in settings.items() if key not in moving]
    return [f"All at {', '.join(fixed)}."] if fixed else []


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


def _on(devices: list[str]) -> str:
    return f", on {' and '.join(devices)}" if devices else ""


def _made_from(sweep: str, made: dict[str, Any]) -> str:
    runs = made["runs"]
    parts = [f"Sweep {sweep}: {runs['finished']} of {runs['planned']} runs finished"]
    if made["corpus_digest"]:
        parts.append(f"corpus {made['corpus_digest'][:12]}")
    if made["commits"]:
        parts.append(f"commit {', '.join(commit[:12] for commit in made['commits'])}")
    parts += [f"Python {', '.join(made['python'])}"] if made["python"] else []
    parts += [f"{name} {', '.join(made['packages'][name])}" for name in ("jax", "flax") if name in made["packages"]]
    return ", ".join([*parts, f"table by wmresearch {made['wm_version']}."])

"""What stands below a table: what its numbers mean, what they were made from, and what is missing or odd."""

from __future__ import annotations

from collections.abc import Collection

from wmresearch.reports import numbers
from wmresearch.reports.rows import Table
from wmresearch.reports.shown import setting_text


def footnotes(table: Table, keys: Collection[str]) -> list[str]:
    """What the numbers in the columns mean and what they were made from; then what is missing or odd."""
    made = table.manifest
    family, ranks = made["comparisons"], table.finds_ranks
    same = "" if table.tuned_keys else " and settings"
    notes = [
        "Losses in nats per token over the whole split, at the last step: mean ± half-width of the 95 % t interval.",
        *_fixed(table),
        "Seeds: n finished of planned. The means are over those n; below two there is no interval.",
    ]
    if "delta" in keys:
        about = f"minus that of {_baseline(table)} with the same seed{same}"
        notes.append(f"Δ: {_words(table.loss)} {about}; 95 % paired t interval.")
    if "p_holm" in keys:
        planned = f"{family} planned comparison{'s' * (family != 1)}"
        notes.append(f"p: two-sided paired t test, Holm-corrected over the {planned}.")
    notes += _within_notes(table, keys)
    if table.loss in keys:
        notes += _mark_notes(table)
    notes += [*_tuning_notes(table), *_matching_notes(table), *_reach_notes(table, keys)]
    if {"recall", "induction", "gain"} & set(keys):
        notes.append(
            "Recall: accuracy of the value after a key, mean over 2, 4, 8, … pairs. Induction: accuracy in the second"
            " copy of random symbols; gain: nats per token that it is better known than the first."
        )
    if any(row.diverged for row in table.rows):
        notes.append("A row with a diverged seed has no p: its mean is over the seeds that survived.")
    if any("no spread" in row.flags for row in table.rows):
        notes.append("No spread: the paired differences are all equal, which allows no test.")
    if {"parameters", "head_output_parameters"} & set(keys):
        zeros = "; non-zeros: those of the head outputs that are not held at zero." if table.holds_zeros else "."
        notes.append(f"Parameters: all, and the head outputs' own{zeros}")
    if "flops_per_token" in keys:
        found = "; at the end, and of all steps together. Where heads find their ranks, means over seeds."
        notes.append(
            "Cost: training FLOPs, forward and backward, that the compiled program makes (masked dense counts as dense)"
            + (found if ranks else ".")
        )
    if "tokens_per_second" in keys:
        notes.append(f"Tokens/s: median over seeds{_on(made['devices'])}.")
    return [*notes, *_extra_notes(table), _made_from(table), *made["notes"]]


def _within_notes(table: Table, keys: Collection[str]) -> list[str]:
    found = [row.delta.resolvable for row in table.rows if row.delta and row.delta.resolvable]
    notes = []
    if table.margin is not None and "within" in keys:
        notes.append(
            f"p (within {table.margin:g}): two one-sided paired t tests that the mean Δ is less than {table.margin:g} "
            "either way, the margin that the sweep states; Holm-corrected alike."
        )
    if found and "delta" in keys:
        least, most = (f"{value:.2g}" for value in (min(found), max(found)))
        span = least if least == most else f"{least} to {most}"
        notes.append(f"With the spread of their differences, the pairs show a Δ of {span} with a chance of 80 %.")
    return notes


def _mark_notes(table: Table) -> list[str]:
    """Of marks that stand in the table."""
    text = f"† lowest mean {_words(table.loss)}"
    if any(row.mark == "not told apart" for row in table.rows):
        text += "; ‡ not told apart from it (paired t test over seeds, p ≥ 0.05, uncorrected), which is not equal to it"
    return [f"{text}."] if any(row.mark for row in table.rows) else []


def _extra_notes(table: Table) -> list[str]:
    names = dict.fromkeys(name for row in table.rows for name in row.extra)
    read = [name for name in names if "." not in name]
    if not read:
        return []
    heads = "of what is known of each head, the mean over heads and layers"
    return [f"{', '.join(read)}: what the finished runs' own files say of their last step; {heads}."]


def _baseline(table: Table) -> str:
    return table.baseline or "its sweep's baseline"


def _tuning_notes(table: Table) -> list[str]:
    rows = [row for row in table.rows if row.tuned]
    keys = table.tuned_keys
    if not rows or not keys:
        return []
    tried = sorted({row.tuned.tried for row in rows if row.tuned})
    tries = f"{' or '.join(map(str, tried))} tried"
    notes = [
        f"{', '.join(keys)}: chosen for each row by the mean validation loss over the tuning seeds, of {tries}.",
        "The runs shown have other seeds than those that tuned.",
        f"At that of {table.baseline or 'baseline'}: the {_words(table.loss)} at what {_baseline(table)} chose.",
    ]
    if any(row.tuned and row.tuned.edges for row in rows):
        notes.append("At the edge: the best is the lowest or highest that was tried, and a better one may lie beyond.")
    if table.loss == "validation_loss":
        notes.append("The corpus has no test split: arms are compared by the kind of loss that chose their values.")
    return notes


def _matching_notes(table: Table) -> list[str]:
    named = {f"{row.sweep}: {row.arm}" if table.sweeps > 1 else row.arm: row for row in table.rows}
    changed = {name: (row.adjusted, row.total_rank) for name, row in named.items() if row.adjusted}
    parts = [
        f"{arm} by {how['key']} = {how['after']} in place of {how['before']} ({how['budget']} {_share(how['off'])}"
        + (
            ")"
            if found is None
            else " by the total rank that it keeps; padded, and while it looks for it, it has more)"
        )
        for arm, (how, found) in changed.items()
    ]
    return [f"Matched to {_baseline(table)}: {'; '.join(parts)}."] if parts else []


def _share(off: float) -> str:
    return f"{off:+.2%}".replace("-", "−")


def _words(loss: str) -> str:
    return loss.replace("_", " ")


def _reach_notes(table: Table, keys: Collection[str]) -> list[str]:
    if "steps_to_reach" not in keys and "flops_to_reach" not in keys:
        return []
    text = f"To reach: until the final validation loss of {_baseline(table)} with the same seed, linear between "
    return [text + f"evaluations; mean over pairs, {numbers.DASH} where one does not reach it."]


def _fixed(table: Table) -> list[str]:
    settings = table.rows[0].settings if table.rows else {}
    moving = (*table.varied, *table.tuned_keys)
    fixed = [f"{key} = {setting_text(value)}" for key, value in settings.items() if key not in moving]
    return [f"All at {', '.join(fixed)}."] if fixed else []


def _on(devices: list[str]) -> str:
    return f", on {' and '.join(devices)}" if devices else ""


def _made_from(table: Table) -> str:
    made = table.manifest
    runs = made["runs"]
    parts = [f"Sweep{'s' * (table.sweeps > 1)} {table.sweep}: {runs['finished']} of {runs['planned']} runs finished"]
    if made["corpus_digest"]:
        parts.append(f"corpus {made['corpus_digest'][:12]}")
    if made["commits"]:
        parts.append(f"commit {', '.join(commit[:12] for commit in made['commits'])}")
    parts += [f"Python {', '.join(made['python'])}"] if made["python"] else []
    parts += [f"{name} {', '.join(made['packages'][name])}" for name in ("jax", "flax") if name in made["packages"]]
    return ", ".join([*parts, f"table by wmresearch {made['wm_version']}, manifest {made['id']}."])

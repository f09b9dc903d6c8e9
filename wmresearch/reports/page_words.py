"""A sweep in words: what was run, what came out of it, how sure that is. Every number is the table's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from wmresearch.reports import numbers
from wmresearch.reports.columns import difference, estimate
from wmresearch.reports.evidence import Evidence, Group
from wmresearch.reports.figures_costs import mean_rank
from wmresearch.reports.rows import Delta, Row
from wmresearch.reports.shown import setting_text

_LEVEL = 0.05
_NAMED = 6
GOING_ON = ("pending", "running", "not started", "preempted")
"""States of a run from which more will come."""


def states(evidence: Evidence) -> Counter[str]:
    """State → how many runs are in it; two rows that share a run count it once."""
    records = [*(run.record for _, run in evidence.runs()), *evidence.others]
    return Counter({record.planned.run_id: record.state for record in records}.values())


def goes_on(evidence: Evidence) -> bool:
    """Whether some run has not ended."""
    return any(states(evidence)[state] for state in GOING_ON)


def tiles(evidence: Evidence) -> list[tuple[str, str, str]]:
    """What, number, and a line beneath: the figures that are looked for first."""
    base, best = _baseline(evidence), _best(evidence)
    counted = states(evidence)
    found = [("runs finished", f"{counted['finished']:,} of {counted.total():,}", _others(counted))]
    if base is not None:
        found.append((f"baseline: {base.name}", estimate(base.compared), f"{evidence.loss}, nats per token"))
    if best is not None:
        found.append((f"lowest of the others: {best.name}", estimate(best.compared), "mean over its seeds"))
        if best.row.delta is not None and best.row.delta.mean is not None:
            found.append(("its difference to the baseline", difference(best.row.delta), _p(best.row.delta)))
    return found


def sentences(evidence: Evidence) -> list[str]:
    """The summary."""
    return [*_runs(evidence), *_losses(evidence), *_comparisons(evidence), *_costs(evidence), *_heads(evidence)]


def _runs(evidence: Evidence) -> Iterator[str]:
    counted = states(evidence)
    arms, seeds = len(evidence.sweep.plan.arms), len({run.seed for _, run in evidence.runs()})
    if not counted:
        yield "The plan has no runs to report."
        return
    varied = evidence.sweep.varied
    grid = len({tuple(setting_text(group.row.settings.get(key)) for key in varied) for group in evidence.groups})
    many = f" at {grid} settings" if grid > 1 else ""
    yield (
        f"{_count(arms, 'arm')} with {_count(seeds, 'seed')}{many}: "
        f"{counted['finished']:,} of {_count(counted.total(), 'run')} finished. {_others(counted, '').capitalize()}"
    ).rstrip(" .") + "."
    if evidence.others:
        yield f"{_count(len(evidence.others), 'run')} of them stand in no row: they serve to choose and check settings."


def _others(counted: Counter[str], nothing: str = "none failed") -> str:
    parts = [f"{n} {state}" for state, n in counted.most_common() if state != "finished"]
    return ", ".join(parts) or nothing


def _losses(evidence: Evidence) -> Iterator[str]:
    base, best = _baseline(evidence), _best(evidence)
    if base is None and best is None:
        yield "No run has finished: there is no mean to report yet."
        return
    if base is not None:
        row = base.row
        yield (
            f"The baseline {base.name} has a {evidence.loss} of {estimate(base.compared)} nats per token "
            f"({_seeds(row)}){_lowest(evidence, base)}."
        )
    else:
        yield f"No run of the baseline {evidence.baseline} has finished."
    if best is not None:
        text = f"The lowest mean of the other rows is that of {best.name}: {estimate(best.compared)}"
        delta = best.row.delta
        if delta is not None and delta.mean is not None:
            text += f", {difference(delta)} to the baseline, paired by seed, {_p(delta)}"
        others = sum(group.row.arm != evidence.baseline for group in evidence.groups)
        if others > 1:
            text += f". It was picked from {others} rows after the fact, which the interval does not count"
        yield text + "."


def _lowest(evidence: Evidence, base: Group) -> str:
    several = [group for group in evidence.groups if group.row.arm == base.row.arm]
    return ", the lowest over the settings of the grid" if len(several) > 1 else ""


def _comparisons(evidence: Evidence) -> Iterator[str]:
    tested = [(group, group.row.delta) for group in evidence.groups if group.row.delta]
    sure = [(g, d) for g, d in tested if d.p_holm is not None and d.p_holm < _LEVEL and d.mean is not None]
    unsure = [(g, d) for g, d in tested if d.p_holm is not None and d.p_holm >= _LEVEL]
    untested = [(g, d) for g, d in tested if d.p_holm is None]
    for word, found in (
        ("lower", [(g, d) for g, d in sure if (d.mean or 0) < 0]),
        ("higher", [(g, d) for g, d in sure if (d.mean or 0) > 0]),
    ):
        if found:
            names = _listed([f"{g.name} ({difference(d)})" for g, d in found])
            yield f"Loss {word} than the baseline's (paired t test, Holm, p < {_LEVEL}): {names}."
    if unsure:
        yield (
            f"No difference to the baseline could be shown for {_listed([g.name for g, _ in unsure])}; "
            "that is not a proof that there is none: see the intervals."
        )
    if untested:
        names = _listed([g.name for g, _ in untested])
        yield f"Not tested (fewer than two pairs, no spread, or a diverged seed): {names}."


def _costs(evidence: Evidence) -> Iterator[str]:
    base = _baseline(evidence)
    if base is None or not base.row.head_output_parameters:
        return
    known = [g for g in evidence.groups if g.row.n and g.row.head_output_parameters and g is not base]
    if not known:
        return
    least = min(known, key=lambda group: group.row.head_output_parameters or 0)
    share = (least.row.head_output_parameters or 0) / base.row.head_output_parameters
    if share < 1:
        yield (
            f"The fewest head-output parameters: {least.name} with {numbers.whole(least.row.head_output_parameters)}, "
            f"{100 * share:.0f} % of the baseline's, at a loss of {estimate(least.compared)}."
        )


def _heads(evidence: Evidence) -> Iterator[str]:
    found = [(group, rank) for group in evidence.groups if group.row.n and (rank := mean_rank(group)) is not None]
    if found:
        names = _listed([f"{group.name} {rank:.1f}" for group, rank in found])
        yield f"Effective rank of a head's map at the end, mean over heads and seeds: {names}."


def _baseline(evidence: Evidence) -> Group | None:
    """Its row with the lowest mean."""
    return _least([group for group in evidence.groups if group.row.arm == evidence.baseline])


def _best(evidence: Evidence) -> Group | None:
    return _least([group for group in evidence.groups if group.row.arm != evidence.baseline])


def _least(groups: Sequence[Group]) -> Group | None:
    known = [group for group in groups if group.compared.mean is not None]
    return min(known, key=lambda group: group.loss, default=None)


def _p(delta: Delta) -> str:
    if delta.p_holm is None:
        return "not tested"
    text = numbers.p_value(delta.p_holm)
    return f"p {text} (Holm)" if text.startswith("<") else f"p = {text} (Holm)"


def _seeds(row: Row) -> str:
    return f"mean over {row.n} seeds ± half of the 95 % t interval" if row.n > 1 else "one seed: no interval"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"

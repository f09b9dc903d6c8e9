"""What the runs of a row say together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wmresearch.reports.records import Record
from wmresearch.reports.statistics import Estimate, mean_interval


def values(records: Sequence[Record], key: str) -> list[Any]:
    """What the runs' summaries say under a key, where they say anything."""
    values = [getattr(record.summary, key) for record in records if record.summary]
    return [value for value in values if value is not None]


def different(group: Sequence[Record], key: str) -> set[Any]:
    """The values under a key that should be one: of the finished runs, or of all while none is finished."""
    return set(values([record for record in group if record.finished] or group, key))


def agreed(group: Sequence[Record], key: str) -> Any:
    """The one value that the runs give; None where they give none, or several: no number is better than a wrong one."""
    values = different(group, key)
    return values.pop() if len(values) == 1 else None


def size(group: Sequence[Record], key: str) -> float | None:
    """What the runs agree on; the mean over them where heads found their ranks, which differ by seed."""
    if not found_ranks(group):
        return agreed(group, key)
    known = values([record for record in group if record.finished] or group, key)
    return sum(known) / len(known) if known else None


def found_ranks(group: Sequence[Record]) -> bool:
    return bool(values(group, "total_rank"))


def whole(number: float | None) -> int | None:
    return None if number is None else round(number)


def average(finished: Sequence[Record], key: str) -> Estimate:
    """Over all finished runs, or over none: a mean over fewer seeds than the row's n would be read wrongly."""
    known = values(finished, key)
    return mean_interval(known if len(known) == len(finished) else [])


def paired(own: Sequence[Record], other: Sequence[Record], key: str) -> tuple[list[Any], list[Any]]:
    """What finished runs of two rows say under a key, seed by seed, where both say something."""
    ours, theirs = ({run.planned.seed: getattr(run.summary, key) for run in runs} for runs in (own, other))
    seeds = [seed for seed, value in ours.items() if value is not None and theirs.get(seed) is not None]
    return [ours[seed] for seed in seeds], [theirs[seed] for seed in seeds]

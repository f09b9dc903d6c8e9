"""Which values of the tuned keys to try next, and which are best: a pure function of the losses so far.

Every arm's grid always has the same shape: where the best of one arm lies on an edge, every arm's grid grows by one
value of that key, its own towards its best. So tuning costs every arm the same number of runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Grid: TypeAlias = Mapping[str, Sequence[Any]]
"""Key → values; numbers ascend."""
Point: TypeAlias = dict[str, Any]
Loss: TypeAlias = float | Literal["waiting", "failed"]
"""Mean loss of a point: infinite where a run diverged; or a run is not there yet, or there will be none."""


@dataclass(frozen=True)
class Search:
    """Where the tuning of one arm stands."""

    grid: Grid
    best: Point | None
    """None where it is not known yet, or a run failed."""
    edges: tuple[str, ...]
    """Keys whose best value is the lowest or highest that was tried."""


def points(grid: Grid) -> list[Point]:
    """Every combination, the values of the last key fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def search(
    grids: Sequence[Grid],
    loss: Callable[[int, Point], Loss],
    limit: int,
    allowed: Callable[[int, Point], bool],
) -> tuple[list[Search], bool]:
    """The state of arms that are tuned together, and whether it is their last. Runs of all grid points are wanted.

    Raises no key's list by more than `limit` values. An arm with a failed run has no best, and its grid stays.
    """
    current = [{key: _ordered(values) for key, values in grid.items()} for grid in grids]
    added = dict.fromkeys(current[0], 0)
    while True:
        losses = [[loss(arm, point) for point in points(grid)] for arm, grid in enumerate(current)]
        if any("waiting" in row for row in losses):
            return [Search(grid, None, ()) for grid in current], False
        best = [_best(grid, row) for grid, row in zip(current, losses, strict=True)]
        found = [
            Search(grid, point, tuple(key for key in grid if point and _edge(grid[key], point[key])))
            for grid, point in zip(current, best, strict=True)
        ]
        growing = [key for key in added if added[key] < limit and any(key in arm.edges for arm in found)]
        if not growing:
            return found, True
        for key in growing:
            added[key] += 1
            for arm, point in enumerate(best):
                if point is not None:
                    current[arm][key] = _grown(
                        current[arm][key],
                        point[key],
                        lambda value: allowed(arm, point | {key: value}),  # noqa: B023
                    )


def _ordered(values: Sequence[Any]) -> list[Any]:
    return sorted(values) if _numbers(values) else list(values)


def _numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _best(grid: Grid, losses: Sequence[Loss]) -> Point | None:
    """The first of the points with the lowest loss; where all diverged, the first of all."""
    if "failed" in losses:
        return None
    numbers = [value for value in losses if not isinstance(value, str)]
    return points(grid)[numbers.index(min(numbers))]


def _edge(values: Sequence[Any], value: Any) -> int:
    """−1 for the lowest of several numbers, unless it is 0 (there is none below); 1 for the highest; else 0."""
    if not _numbers(values) or len(values) < 2:
        return 0
    return -1 if value == values[0] and value != 0 else int(value == values[-1])


def _grown(values: Sequence[Any], best: Any, allowed: Callable[[Any], bool]) -> list[Any]:
    """The values and one more at the end nearer to the best, where one is allowed there, else at the other."""
    place, last = values.index(best), len(values) - 1
    first = _edge(values, best) or (-1 if 2 * place < last else 1)
    for side in (first, -first):
        value = _beyond(values, side) if _numbers(values) else None
        if value is not None and value not in values and allowed(value):
            return sorted([*values, value])
    return list(values)


def _beyond(values: Sequence[float], side: int) -> float | None:
    """The next number in the geometric series of the two at an end; doubled or halved where there is none."""
    end, before = (values[-1], values[-2]) if side > 0 else (values[0], values[1])
    if end == 0:
        return None
    factor = end / before if before and end / before > 0 else 2.0**side
    value = end * factor
    if not math.isfinite(value):
        return None
    if all(isinstance(item, int) for item in values):
        return round(value) or None  # a whole number above 0 has none below 1
    return float(f"{value:.6g}")

"""Where the directions of heads of unequal ranks lie in a layer's arrays.

All directions of a layer lie in one row: w of them, head after head. A head's own are padded to a multiple of the
bucket size, and heads of equal width lie together, so that they are computed as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from wmresearch.head_output.weights import PADDING

MOST_BUCKETS = 4
"""More take longer than what they save: each has products of its own, and narrow ones are slow."""


@dataclass(frozen=True)
class Bucket:
    """Heads of one width."""

    width: int
    heads: tuple[int, ...]
    """Key/value heads by their original numbers."""


@dataclass(frozen=True)
class RankLayout:
    """The buckets of a layer, the widest first. Two models with equal layouts are one program."""

    buckets: tuple[Bucket, ...]
    group: int
    """Query heads that share a key/value head."""

    @classmethod
    def of(cls, ranks: tuple[int, ...], bucket: int, group: int) -> RankLayout:
        """Heads of rank 0 have no place; each other one has the least width that leaves `MOST_BUCKETS` or fewer."""
        least = [-bucket * (-rank // bucket) for rank in ranks]
        wider = _merged(tuple(sorted((width for width in least if width), reverse=True)))
        widths = [wider.get(width, 0) for width in least]
        order = sorted((head for head in range(len(ranks)) if widths[head]), key=lambda head: -widths[head])
        grouped = groupby(order, key=lambda head: widths[head])
        return cls(tuple(Bucket(width, tuple(heads)) for width, heads in grouped), group)

    @property
    def heads(self) -> tuple[int, ...]:
        """The key/value heads in their order, by their original numbers."""
        return tuple(head for bucket in self.buckets for head in bucket.heads)

    @property
    def query_heads(self) -> tuple[int, ...]:
        """The query heads in their order, by their original numbers."""
        return tuple(head * self.group + i for head in self.heads for i in range(self.group))

    @property
    def width(self) -> int:
        """w: places for directions, padding included."""
        return sum(self.widths)

    @property
    def widths(self) -> list[int]:
        """Places of each head, in their order."""
        return [bucket.width for bucket in self.buckets for _ in bucket.heads]

    @property
    def widest(self) -> int:
        return max((bucket.width for bucket in self.buckets), default=0)

    def places(self) -> Iterator[tuple[int, slice]]:
        """Each head by its original number, and where its directions lie in the row."""
        start = 0
        for bucket in self.buckets:
            for head in bucket.heads:
                yield head, slice(start, start + bucket.width)
                start += bucket.width

    def parts(self) -> Iterator[tuple[Bucket, slice, slice]]:
        """Each bucket, where its directions lie in the row, and its query heads among those that are there."""
        start = first = 0
        for bucket in self.buckets:
            end, last = start + bucket.width * len(bucket.heads), first + self.group * len(bucket.heads)
            yield bucket, slice(start, end), slice(first, last)
            start, first = end, last

    def head_of_place(self) -> np.ndarray:
        """The original number of the head that each place belongs to: `[w]`."""
        return np.array([head for head, places in self.places() for _ in range(places.start, places.stop)], np.int32)

    def numbered(self, ranks: tuple[int, ...]) -> np.ndarray:
        """0, 1, … of each head's directions at first, `PADDING` beyond its rank: `[w]`."""
        rows = [np.arange(places.stop - places.start) for _, places in self.places()]
        held = [np.where(row < ranks[head], row, PADDING) for (head, _), row in zip(self.places(), rows, strict=True)]
        return np.concatenate(held).astype(np.int32) if held else np.zeros(0, np.int32)

    def place_of_row(self) -> np.ndarray:
        """Of each row of B, which has one for each query head of a direction, the direction's place: `[g·w]`.

        B has its rows query head after query head, as attention gives what they mix.
        """
        rows = [np.arange(places.start, places.stop) for _, places in self.places() for _ in range(self.group)]
        return np.concatenate(rows) if rows else np.zeros(0, int)

    def rows_of_places(self) -> np.ndarray:
        """The rows of B for each place, one for each query head of its group: `[w, g]`."""
        return np.argsort(self.place_of_row(), kind="stable").reshape(self.width, self.group)


def _merged(widths: tuple[int, ...]) -> dict[int, int]:
    """For each of some falling widths the one that its bucket has, in at most `MOST_BUCKETS`, least in sum."""
    sizes = sorted(set(widths), reverse=True)
    counts = [widths.count(size) for size in sizes]
    best: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {(0, 0): (0, ())}
    for end in range(1, len(sizes) + 1):  # the widest `end` sizes, in so many buckets, that begin at these sizes
        for used in range(1, min(end, MOST_BUCKETS) + 1):
            options = [
                (best[start, used - 1][0] + sizes[start] * sum(counts[start:end]), (*best[start, used - 1][1], start))
                for start in range(used - 1, end)
                if (start, used - 1) in best
            ]
            best[end, used] = min(options)
    ends = [best[len(sizes), used] for used in range(min(len(sizes), MOST_BUCKETS) + 1) if (len(sizes), used) in best]
    starts = min(ends)[1]
    return {size: sizes[max(start for start in starts if start <= i)] for i, size in enumerate(sizes)}

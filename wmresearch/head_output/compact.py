"""Takes directions and heads out of the arrays of an attention layer: what is left computes the same.

A direction is a column of A with its rows of B; a head without directions goes with its queries and keys. What is
taken out of a parameter is taken out of everything shaped like it: moments, cached gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Int

from wmresearch.head_output.rank_layout import RankLayout
from wmresearch.head_output.weights import PADDING

Attention: TypeAlias = Mapping[str, Any]
"""The parameters of an attention layer: its own, and under `head_output` those of a `dynamic_rank`."""

_OF_ONE_ROW = ("value_bias", "origin", "slow", "scale", "sensitivity", "uncertainty", "within")
_BY_PLACE = {"factor_a": 1} | dict.fromkeys(_OF_ONE_ROW, 0)
"""Name of a parameter → its axis of places. `factor_b` has rows instead."""
_BY_HEAD = {"key": 1, "key_bias": 0, "slow_of_head": 0}
_BY_QUERY_HEAD = {"query": 1, "query_bias": 0}


@dataclass(frozen=True)
class Move:
    """From one layout of a layer to another, which has some of its directions."""

    old: RankLayout
    new: RankLayout
    places: Int[np.ndarray, " w"]
    """For each new place the old one, or `PADDING`."""

    def __call__(self, name: str, leaf: np.ndarray) -> np.ndarray:
        """An array shaped like the parameter of a name, moved. Padding is zero (of `origin` it is `PADDING`)."""
        if name == "factor_b":
            rows = np.full((self.new.width, self.new.group), PADDING)
            held = self.places != PADDING
            rows[held] = self.old.rows_of_places()[self.places[held]]
            taken = np.empty(rows.size, int)
            taken[self.new.rows_of_places().ravel()] = rows.ravel()
            return _take(leaf, taken, 0)
        if name in _BY_PLACE:
            return _take(leaf, self.places, _BY_PLACE[name], PADDING if name == "origin" else 0)
        for axes, olds, news in (
            (_BY_HEAD, self.old.heads, self.new.heads),
            (_BY_QUERY_HEAD, self.old.query_heads, self.new.query_heads),
        ):
            if name in axes:
                return _take(leaf, np.array([olds.index(head) for head in news], int), axes[name])
        return leaf


def make_move(layout: RankLayout, keep: Bool[np.ndarray, " w"], bucket: int, heads: int) -> Move:
    """Keeps some directions of a layer, each head's in their order; it had so many key/value heads at first."""
    new = RankLayout.of(kept_ranks(layout, keep, heads), bucket, layout.group)
    kept = {head: places.start + np.flatnonzero(keep[places]) for head, places in layout.places()}
    moved = np.full(new.width, PADDING)
    for head, places in new.places():
        moved[places.start : places.start + len(kept[head])] = kept[head]
    return Move(layout, new, moved)


def kept_ranks(layout: RankLayout, keep: Bool[np.ndarray, " w"], heads: int) -> tuple[int, ...]:
    """How many directions each key/value head keeps, by its original number."""
    ranks = [0] * heads
    for head, places in layout.places():
        ranks[head] = int(keep[places].sum())
    return tuple(ranks)


def alive(attention: Attention, layout: RankLayout) -> Bool[np.ndarray, " w"]:
    """The directions that are not zero both in A and in B: the others do nothing, and no gradient moves them."""
    if not layout.width:
        return np.zeros(0, bool)
    output = attention["head_output"]
    a, b = np.asarray(output["factor_a"]), np.asarray(output["factor_b"])
    return (a != 0).any(axis=0) | (b != 0).any(axis=1)[layout.rows_of_places()].any(axis=1)


def closed(name: str, leaf: np.ndarray, layout: RankLayout, keep: Bool[np.ndarray, " w"]) -> np.ndarray:
    """An array shaped like the parameter of a name with zeros for directions that are not kept, and for empty heads."""
    if name == "origin" or not layout.width:
        return leaf
    if name == "factor_b":
        return np.where(keep[layout.place_of_row()][:, None], leaf, 0).astype(leaf.dtype)
    if name in _BY_PLACE:
        return np.where(keep if leaf.ndim == 1 else keep[None], leaf, 0).astype(leaf.dtype)
    in_use = np.array([keep[places].any() for _, places in layout.places()])
    for axes, used in ((_BY_HEAD, in_use), (_BY_QUERY_HEAD, np.repeat(in_use, layout.group))):
        if name in axes:
            along = [-1 if axis == axes[name] else 1 for axis in range(leaf.ndim)]
            return np.where(used.reshape(along), leaf, 0).astype(leaf.dtype)
    return leaf


def _take(leaf: np.ndarray, places: Int[np.ndarray, " n"], axis: int, filler: int = 0) -> np.ndarray:
    taken = np.take(leaf, np.maximum(places, 0), axis=axis)
    along = [-1 if other == axis else 1 for other in range(leaf.ndim)]
    return np.where((places != PADDING).reshape(along), taken, filler).astype(leaf.dtype)

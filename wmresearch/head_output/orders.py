"""The three orders in which y = Σ_i P_i X M_i can be evaluated: one function, very different costs.

attend-then-write    Σ_i write_i(P_i read_i(X))      mixes what heads read: width r
modify-then-attend   Σ_i P_i write_i(read_i(X))      mixes what heads would write: width d a head
mix-first            Σ_i write_i(read_i(P_i X))      mixes x itself, which all heads share: width d a head
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Float

Mix: TypeAlias = Callable[[Float[Array, "b t k r"]], Float[Array, "b t h r"]]
"""Applies the attention: what the heads hold at each position → what they gather there. Any number of value heads that
divides the query heads will do; each is used by as many query heads in a row."""

QUERY_BLOCK = 64
"""Queries handled together; a block attends to the keys up to its own end, so the masked half is mostly skipped."""


def query_blocks(t: int) -> list[tuple[int, int]]:
    """The (start, end) of each block of queries."""
    return [(start, min(start + QUERY_BLOCK, t)) for start in range(0, t, QUERY_BLOCK)]


def attended_keys(t: int) -> float:
    """Keys that a query is multiplied with, on average over t positions: about half of t for long contexts."""
    return sum((end - start) * end for start, end in query_blocks(t)) / t


class Path(Protocol):
    """The two steps of a head output's maps (`base.HeadOutput`)."""

    heads: int

    def read(self, x_btkd: Float[Array, "b t h|1 d"]) -> Float[Array, "b t k r"]: ...
    def write(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t d"]: ...
    def write_each(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t h d"]: ...


def attend_then_write(path: Path, x_btd: Float[Array, "b t d"], mix: Mix) -> Float[Array, "b t d"]:
    """Σ_i write_i(P_i read_i(X)): what the standard layer does; the sum over heads is part of the last product."""
    return path.write(mix(path.read(x_btd[:, :, None])))


def modify_then_attend(path: Path, x_btd: Float[Array, "b t d"], mix: Mix) -> Float[Array, "b t d"]:
    """Σ_i P_i (X M_i): each head's whole map first."""
    z_btkr = path.read(x_btd[:, :, None])
    z_bthr = jnp.repeat(z_btkr, path.heads // z_btkr.shape[2], axis=2)
    return mix(path.write_each(z_bthr)).sum(axis=2)


def mix_first(path: Path, x_btd: Float[Array, "b t d"], mix: Mix) -> Float[Array, "b t d"]:
    """Σ_i (P_i X) M_i: x is the one value that all heads share, as in multi-query attention."""
    return path.write(path.read(mix(x_btd[:, :, None])))


ORDERS: dict[str, Callable[[Path, Array, Mix], Array]] = {
    "attend_then_write": attend_then_write,
    "modify_then_attend": modify_then_attend,
    "mix_first": mix_first,
}


@dataclass(frozen=True)
class PathCost:
    """What the steps of a head output cost, in operations a token (2 for each multiply-add of a matrix product)."""

    d: int
    heads: int
    value_heads: int
    """k of what is read of one shared x."""
    width: int
    """r."""
    read: float
    """Reading of one x that all heads share."""
    read_each: float
    """Reading of an x for each head."""
    write: float
    write_each: float

    def flops_per_token(self, order: str, attended: float) -> float:
        """Operations of a forward pass for one token that attends to so many keys."""
        mixed = 2.0 * self.heads * attended
        if order == "attend_then_write":
            return self.read + mixed * self.width + self.write
        if order == "modify_then_attend":
            return self.read + self.write_each + mixed * self.d
        return mixed * self.d + self.read_each + self.write

    def cache_shape(self, order: str) -> tuple[int, int]:
        """Value heads, and width, of what attention mixes."""
        return {
            "attend_then_write": (self.value_heads, self.width),
            "modify_then_attend": (self.heads, self.d),
            "mix_first": (1, self.d),
        }[order]

    def cache_per_token(self, order: str) -> int:
        """Numbers that generation keeps of each past token."""
        heads, width = self.cache_shape(order)
        return heads * width


def cheapest(cost: PathCost, attended: float) -> str:
    """The order with the fewest operations; of equals the first in the order of `ORDERS`."""
    return min(ORDERS, key=lambda order: cost.flops_per_token(order, attended))

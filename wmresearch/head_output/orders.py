"""The three orders in which y = Σ_i P_i X M_i can be evaluated: one function, very different costs.

attend-then-write    Σ_i write_i(P_i read_i(X))      mixes what heads read: width r
modify-then-attend   Σ_i P_i write_i(read_i(X))      mixes what heads would write: width d a head
mix-first            Σ_i write_i(read_i(P_i X))      mixes x itself, which all heads share: width d a head

Operations alone do not decide which is fastest: an array with an axis of heads has to be brought into the layout in
which a product reads it, and values are read again for each block of queries. So a training step is taken to last as
long as 3 · (operations + `MOVED` · numbers moved + `STREAMED` · numbers streamed) operations of a large matrix product,
a token, and `auto` is the order for which this is least (`fastest`). What all orders share is left out.

Both constants are measured on a CPU (`python benchmarks/orders.py --fit`) and used everywhere, so that the order is a
function of the config: it changes rounding, and a run must not come out differently where it is only resumed on another
machine. They are not measured on accelerators. By published peaks one costs more there, not less: an NVIDIA H100 does
590 operations (989 TFLOP/s in bfloat16) while its memory (3.35 TB/s) reads or writes a number once, and a training step
does so several times. Whoever knows better for a device sets `order`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp
from jaxtyping import Array, Float


class Mix(Protocol):
    """Applies the attention: what the heads hold at each position → what they gather there.

    Any number of value heads that divides the query heads will do; each is used by as many query heads in a row.
    `heads` are the query heads that mix, all unless given.
    """

    def __call__(
        self, value_btkr: Float[Array, "b t k r"], heads: slice = slice(None), /
    ) -> Float[Array, "b t h r"]: ...


QUERY_BLOCK = 64
"""Queries handled together; a block attends to the keys up to its own end, so the masked half is mostly skipped."""

MOVED = 140.0
"""Operations in the time that a number takes into or out of a product by heads, which wants it in a layout of its own
(132 to 159 in four fits)."""
STREAMED = 130.0
"""Operations in the time that a number of the values takes for a block of queries: each reads the values up to its own
end, and the backward pass adds to the gradient of all (111 to 151)."""


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
    """What the steps of a head output cost, a token: operations (2 for each multiply-add) and numbers moved."""

    d: int
    heads: int
    value_heads: int
    """k of what is read of one shared x."""
    width: int
    """r."""
    read: float
    """Operations of reading one x that all heads share."""
    read_each: float
    """Of reading an x for each head."""
    write: float
    write_each: float
    copied: int = 0
    """How much of r is x as it is, so that no product makes it."""
    write_moved: int = 0
    """Numbers with an axis of heads that `write` moves; none where one product sums over the heads."""

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

    def moved_per_token(self, order: str) -> int:
        """Numbers that go into or come out of products by heads: reading or writing each by itself, and mixing.

        What goes into mixing is `streamed` and not counted here. One product for all heads moves none: reading of an x
        that they share, and a write that sums over them. Nor does mixing whose output is only summed over the heads.
        """
        h, d, made = self.heads, self.d, self.width - self.copied
        if order == "attend_then_write":  # out of mixing
            return h * self.width + self.write_moved
        if order == "modify_then_attend":  # into `write_each` and out of it; x itself only once for all heads
            return self.value_heads * made + self.copied + h * d
        read_each = h * (d + made) if made else 0
        return h * d + read_each + self.write_moved

    def time_per_token(self, order: str, t: int) -> float:
        """How long a token's part of a step over contexts of t takes, in operations of a forward pass."""
        streamed = self.cache_per_token(order) * len(query_blocks(t))
        return self.flops_per_token(order, attended_keys(t)) + MOVED * self.moved_per_token(order) + STREAMED * streamed


def fastest(cost: PathCost, t: int, orders: Iterable[str] = ORDERS) -> str:
    """The order with the least predicted time at a context of t; of equals the first.

    Attend-then-write and mix-first are one program, and equal, where what is read is x itself and has no bias.
    """
    return min(orders, key=lambda order: cost.time_per_token(order, t))

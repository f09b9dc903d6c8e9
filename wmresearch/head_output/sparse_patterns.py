"""Patterns of sparsity: what counts as one unit, how large it is, and which units are kept.

Matrices are `[heads, in, out]`, a product sums over `in`. Units are single entries, or blocks; of n:m the entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from wmresearch.config.sparsity import Blocks, NOfM, Pattern


@jax.custom_jvp
def masked(weight: Float[Array, "*n"], mask: Bool[Array, "*n"]) -> Float[Array, "*n"]:
    """The weight where the mask is true, else 0. Its gradient passes to all entries (straight through).

    So the loss's gradient of entries that are zero is known (RigL grows the largest); what follows a gradient masks it.
    """
    return jnp.where(mask, weight, 0)


@masked.defjvp
def _masked_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Any]) -> tuple[Array, Array]:
    return masked(*primals), tangents[0]


def unit_count(pattern: Pattern, shape: tuple[int, ...]) -> int:
    """Units of matrices `[heads, in, out]`."""
    heads, rows, columns = shape
    size = pattern.size if isinstance(pattern, Blocks) else 1
    return heads * (rows // size) * (columns // size)


def kept_count(pattern: Pattern, share: float, shape: tuple[int, ...]) -> int:
    """Units that are kept, at least one."""
    return max(1, round(share * unit_count(pattern, shape)))


def unit_sizes(pattern: Pattern, x: Float[Array, "h n m"]) -> Float[Array, "h i j"]:
    """Absolute value of each entry, or ‖·‖_F of each block."""
    if not isinstance(pattern, Blocks):
        return jnp.abs(x)
    heads, rows, columns = x.shape
    size = pattern.size
    squares = jnp.square(x).reshape(heads, rows // size, size, columns // size, size)
    return jnp.sqrt(squares.sum(axis=(2, 4)))


def spread(pattern: Pattern, units: Bool[Array, "h i j"]) -> Bool[Array, "h n m"]:
    """The units' value at each of their entries."""
    if not isinstance(pattern, Blocks):
        return units
    return jnp.repeat(jnp.repeat(units, pattern.size, axis=1), pattern.size, axis=2)


def units_of(pattern: Pattern, mask: Bool[Array, "h n m"]) -> Bool[Array, "h i j"]:
    """What was spread."""
    size = pattern.size if isinstance(pattern, Blocks) else 1
    return mask[:, ::size, ::size]


def largest(sizes: Float[Array, " n"], count: Any) -> Bool[Array, " n"]:
    """Exactly so many, the largest; of equals the first. The count may be traced."""
    order = jnp.argsort(-sizes, stable=True)
    ranks = jnp.zeros_like(order).at[order].set(jnp.arange(order.size))
    return ranks < count


def largest_of_each(sizes: Float[Array, "h n m"], count: Any, group: int) -> Bool[Array, "h n m"]:
    """The `count` largest of each `group` of neighbours along the axis that a product sums over."""
    heads, rows, columns = sizes.shape
    grouped = sizes.reshape(heads, rows // group, group, columns)
    order = jnp.argsort(-grouped, axis=2, stable=True)
    return (jnp.argsort(order, axis=2) < count).reshape(sizes.shape)


def choose(pattern: Pattern, share: float, sizes: Float[Array, "h i j"]) -> Bool[Array, "h i j"]:
    """The units that are kept of one matrix: the largest, as many as the share says, or n of every m."""
    if isinstance(pattern, NOfM):
        return largest_of_each(sizes, pattern.n, pattern.m)
    return largest(sizes.ravel(), max(1, round(share * sizes.size))).reshape(sizes.shape)


@dataclass(frozen=True)
class RandomMask:
    """A mask with exactly the units that are kept, at random places."""

    pattern: Pattern
    share: float

    def __call__(self, own: PRNGKeyArray, common: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Array:
        del common
        heads, rows, columns = shape
        size = self.pattern.size if isinstance(self.pattern, Blocks) else 1
        drawn = jax.random.uniform(own, (heads, rows // size, columns // size))
        return spread(self.pattern, choose(self.pattern, self.share, drawn)).astype(dtype)


@dataclass(frozen=True)
class RandomPlaces:
    """The row, or the column, of so many blocks a head, all at different random places of a grid."""

    grid: int
    column: bool

    def __call__(self, own: PRNGKeyArray, common: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Array:
        del own
        heads, count = shape
        drawn = jax.random.uniform(common, (heads, self.grid * self.grid))
        places = jnp.sort(jnp.argsort(drawn, axis=1)[:, :count], axis=1)
        return (places % self.grid if self.column else places // self.grid).astype(dtype)

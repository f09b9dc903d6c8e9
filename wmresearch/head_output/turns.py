"""One function over many rows, some rows at a time: what it holds between is then only as large as for these."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array


def in_turns(function: Callable[..., Array], size: int, *rows: Array) -> Array:
    """`function(*rows)`, which treats each row by itself, of `size` rows at a time in both directions.

    All arrays have the same number of rows; the last turn is filled up with zeros, whose results are cut off.
    """
    n = rows[0].shape[0]
    if size >= n:
        return function(*rows)
    turns = -(-n // size)

    def split(x: Array) -> Array:
        more = [(0, turns * size - n)] + [(0, 0)] * (x.ndim - 1)
        return jnp.pad(x, more).reshape(turns, size, *x.shape[1:])

    out = jax.lax.map(jax.checkpoint(lambda some: function(*some)), tuple(split(x) for x in rows))
    return out.reshape(turns * size, *out.shape[2:])[:n]

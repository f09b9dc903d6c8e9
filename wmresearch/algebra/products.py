"""Matrix products at full precision: accelerators round the inputs of a product unless they are told not to."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def matmul(x: Float[Array, "*batch"], y: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """The product x y, batched over the leading axes as in `jnp.matmul`."""
    return jnp.matmul(x, y, precision=lax.Precision.HIGHEST)


def transpose(x: Float[Array, "*batch m n"]) -> Float[Array, "*batch n m"]:
    """xᵀ, the last two axes exchanged."""
    return jnp.swapaxes(x, -1, -2)


def gram(x: Float[Array, "*batch m r"]) -> Float[Array, "*batch r r"]:
    """xᵀ x."""
    return matmul(transpose(x), x)


def safe_sqrt(x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """√x with derivative 0 where x ≤ 0 (rounding may leave a sum of squares slightly negative; √ has no slope at 0)."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


def safe_divide(x: Float[Array, "*batch"], y: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """The quotient x / y, and 0 where y is 0."""
    return jnp.where(y == 0, 0, x / jnp.where(y == 0, 1, y))


def safe_length(squares: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """√ of a sum of squares that will be divided by; 0 for one below (smallest normal number) / ε.

    The derivative of x / ‖x‖ grows as 1 / ‖x‖ and would overflow there.
    """
    info = jnp.finfo(squares.dtype)
    return safe_sqrt(jnp.where(squares > info.tiny / info.eps, squares, 0))

"""Norms of M = A B, and inner products of such matrices, that need no singular values: r × r Grams are enough."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from wmresearch.algebra.products import gram, matmul, safe_divide, safe_length, safe_sqrt, transpose

TILE_ROWS = 32
"""Rows of M that the L1 norm holds at a time."""


def inner(
    a: Float[Array, "*batch m r"],
    b: Float[Array, "*batch r n"],
    c: Float[Array, "*batch m s"],
    d: Float[Array, "*batch s n"],
) -> Float[Array, "*batch"]:
    """⟨AB, CD⟩_F = Σ (AᵀC) ∘ (B Dᵀ).

    Rounding is relative to ‖A‖ ‖B‖ ‖C‖ ‖D‖, as of any Gram: factors in a gauge of condition κ lose κ² ε.
    """
    return jnp.sum(matmul(transpose(a), c) * matmul(b, transpose(d)), axis=(-1, -2))


def squared_frobenius(a: Float[Array, "*batch m r"], b: Float[Array, "*batch r n"]) -> Float[Array, "*batch"]:
    """‖AB‖_F² = Σ (AᵀA) ∘ (BBᵀ)."""
    return jnp.sum(gram(a) * gram(transpose(b)), axis=(-1, -2))


def row_norms(a: Float[Array, "*batch m r"], b: Float[Array, "*batch r n"]) -> Float[Array, "*batch m"]:
    """‖(AB)_k‖ of each row k: √(a_k (BBᵀ) a_kᵀ). Derivative 0 at a zero row."""
    return safe_sqrt(jnp.sum(matmul(a, gram(transpose(b))) * a, axis=-1))


def block_norms(
    a: Float[Array, "*batch m r"], b: Float[Array, "*batch r n"], rows: int, columns: int
) -> Float[Array, "*batch i j"]:
    """‖(AB)_IJ‖_F of each block of `rows` × `columns`: √⟨A_IᵀA_I, B_J B_Jᵀ⟩. Derivative 0 at a zero block.

    Raises ValueError unless the blocks fill M.
    """
    (m, r), n = a.shape[-2:], b.shape[-1]
    if min(rows, columns) < 1 or m % rows or n % columns:
        raise ValueError(
            f"block_norms: blocks of {rows} × {columns} do not fill a matrix of {m} × {n}; "
            f"give a divisor of {m} and one of {n}"
        )
    gram_a = gram(a.reshape(*a.shape[:-2], m // rows, rows, r))
    gram_b = gram(transpose(b).reshape(*b.shape[:-2], n // columns, columns, r))
    flat_a, flat_b = (g.reshape(*g.shape[:-2], r * r) for g in (gram_a, gram_b))
    return safe_sqrt(matmul(flat_a, transpose(flat_b)))


def l1_norm(a: Float[Array, "*batch m r"], b: Float[Array, "*batch r n"]) -> Float[Array, "*batch"]:
    """Σ |(AB)_kl|, in tiles of TILE_ROWS rows which the backward pass computes again; sign(0) = 0."""
    m, r = a.shape[-2:]
    tiles = -(-m // TILE_ROWS)
    padding = [(0, 0)] * (a.ndim - 2) + [(0, tiles * TILE_ROWS - m), (0, 0)]
    a_tiles = jnp.moveaxis(jnp.pad(a, padding).reshape(*a.shape[:-2], tiles, TILE_ROWS, r), -3, 0)

    @jax.checkpoint
    def add(total: Float[Array, "*batch"], tile: Float[Array, "*batch t r"]) -> tuple[Float[Array, "*batch"], None]:
        return total + jnp.sum(jnp.abs(matmul(tile, b)), axis=(-1, -2)), None

    return jax.lax.scan(add, jnp.zeros(a.shape[:-2], a.dtype), a_tiles)[0]


def head_cosines(a: Float[Array, "*batch h m r"], b: Float[Array, "*batch h r n"]) -> Float[Array, "*batch h h"]:
    """cos_ij = ⟨M_i, M_j⟩_F / (‖M_i‖_F ‖M_j‖_F) of the heads i, j of one layer, 0 where one is zero."""
    (h, m, r), n = a.shape[-3:], b.shape[-1]
    side_a = jnp.moveaxis(a, -3, -2).reshape(*a.shape[:-3], m, h * r)
    side_b = b.reshape(*b.shape[:-3], h * r, n)
    grams = (gram(side_a) * gram(transpose(side_b))).reshape(*a.shape[:-3], h, r, h, r)
    inners = jnp.sum(grams, axis=(-3, -1))
    norms = safe_length(jnp.diagonal(inners, axis1=-2, axis2=-1))
    return safe_divide(safe_divide(inners, norms[..., :, None]), norms[..., None, :])

"""Penalties: functions of a layer's, or of all layers', heads' maps M_i = A_i B_i that are added to a loss.

Each takes a `FactoredMatrix`, `[h, …]` or `[layers, h, …]`, and returns one number: the sum over all maps. All but
`factor_decay` and `orthogonal_factors` are functions of M alone, the same in every gauge. All have a finite gradient
everywhere, zero matrices included.
"""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from wmresearch.algebra import norms
from wmresearch.algebra.factored_matrix import FactoredMatrix
from wmresearch.algebra.products import gram, safe_divide, safe_length, transpose


def nuclear(matrix: FactoredMatrix) -> Float[Array, ""]:
    """Σ ‖M_i‖_*, the sum of the singular values."""
    return jnp.sum(matrix.nuclear_norm())


def frobenius(matrix: FactoredMatrix) -> Float[Array, ""]:
    """½ Σ ‖M_i‖_F²: decay of the product (Khodak et al. 2021, arXiv 2105.01029), with ∇_A = A (B Bᵀ), ∇_B = (AᵀA) B."""
    return jnp.sum(norms.squared_frobenius(matrix.a, matrix.b)) / 2


def spectral(matrix: FactoredMatrix) -> Float[Array, ""]:
    """Σ ‖M_i‖₂, the largest singular value of each."""
    return jnp.sum(matrix.spectral_norm())


def schatten(matrix: FactoredMatrix, p: float) -> Float[Array, ""]:
    """Σ ‖M_i‖_p, (Σ σ^p)^{1/p} of each: the norm, not its p-th power. Raises ValueError unless p > 0."""
    return jnp.sum(matrix.schatten_norm(p))


def l1(matrix: FactoredMatrix) -> Float[Array, ""]:
    """Σ |M_i,kl|, computed in tiles."""
    return jnp.sum(matrix.l1_norm())


def group_lasso(
    matrix: FactoredMatrix, groups: Literal["rows", "columns"] | tuple[int, int] = "rows"
) -> Float[Array, ""]:
    """Σ ‖M_i,g‖_F over the groups g of entries of each M_i: its rows, its columns, or its blocks of the given size.

    A row is an input that a head reads, a column an output that it writes. Raises ValueError if blocks do not fill M.
    """
    if groups == "rows":
        return jnp.sum(matrix.row_norms())
    if groups == "columns":
        return jnp.sum(matrix.column_norms())
    return jnp.sum(matrix.block_norms(*groups))


def head_overlap(matrix: FactoredMatrix) -> Float[Array, ""]:
    """Σ_{i<j} cos²(M_i, M_j) over the pairs of heads of a layer, cos in the Frobenius inner product; a zero head has 0.

    Needs no scale elsewhere but does not hold one either: it is the same for c M_i. Costs (h r)² d multiply-adds.
    """
    cosines = norms.head_cosines(matrix.a, matrix.b)
    pairs = jnp.triu(jnp.ones(cosines.shape[-2:], dtype=bool), 1)
    return jnp.sum(jnp.where(jnp.broadcast_to(pairs, cosines.shape), cosines * cosines, 0))


def factor_decay(matrix: FactoredMatrix) -> Float[Array, ""]:
    """½ Σ (‖A_i‖_F² + ‖B_i‖_F²): weight decay as a loss. Gauge-dependent; at its least over all gauges Σ ‖M_i‖_*.

    Heads that share A count it once each: give it `stack_group`'s matrix, whose least is Σ ‖[M_1 … M_g]‖_* over groups.
    """
    return (jnp.sum(matrix.a * matrix.a) + jnp.sum(matrix.b * matrix.b)) / 2


def orthogonal_factors(matrix: FactoredMatrix) -> Float[Array, ""]:
    """Σ_{k<l} (cos²(a_k, a_l) + cos²(b_k, b_l)) over the columns a of A_i and the rows b of B_i.

    That is ½ (‖ÂᵀÂ − I‖_F² + ‖B̂B̂ᵀ − I‖_F²) for M = Â diag(s) B̂, where Â's columns and B̂'s rows have length 1 and s
    holds the scale (AdaLoRA's form, Zhang et al. 2023, arXiv 2303.10512). Zero where Â diag(s) B̂ is an SVD of M.
    Gauge-dependent: A G, G⁻¹ B gives another value and every M has a gauge of value 0. It steers the factors, not M.
    """
    return _column_overlap(matrix.a) + _column_overlap(transpose(matrix.b))


def _column_overlap(a: Float[Array, "*batch m r"]) -> Float[Array, ""]:
    length = safe_length(jnp.sum(a * a, axis=-2, keepdims=True))
    cosines = gram(safe_divide(a, length))
    off_diagonal = 1 - jnp.eye(a.shape[-1], dtype=a.dtype)
    return jnp.sum(cosines * cosines * jnp.broadcast_to(off_diagonal, cosines.shape)) / 2


def stack_group(matrix: FactoredMatrix, size: int) -> FactoredMatrix:
    """[M_1 … M_g] = A [B_1 … B_g] for each group of g = `size` neighbouring heads that share A: `[..., h / g, m, g n]`.

    Query heads with shared values: factor decay on such a group is the nuclear norm of this matrix, not the sum of the
    heads'. A is taken from the first head of each group; that the others have the same is the caller's word.

    Raises ValueError unless `size` divides the number of heads.
    """
    heads = matrix.a.shape[-3]
    if size < 1 or heads % size:
        raise ValueError(f"stack_group: groups of {size} do not divide {heads} heads; give a divisor")
    *layers, _, r, n = matrix.b.shape
    grouped = matrix.b.reshape(*layers, heads // size, size, r, n)
    side_by_side = jnp.moveaxis(grouped, -3, -2).reshape(*layers, heads // size, r, size * n)
    return FactoredMatrix(matrix.a[..., ::size, :, :], side_by_side)

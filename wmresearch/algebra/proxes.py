"""Proximal steps: prox(M) = argmin_N ½ ‖N − M‖_F² + t · penalty(N).

Taken after an optimizer's step of size η, with t = η · strength, on A B as stored. They return factors in the gauge
that they were given, changed as little as the step allows and not at all where it does nothing, so that what an
optimizer remembers of A and B stays valid. `threshold` is a number, or an array with the matrices' leading axes.
"""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from wmresearch.algebra.factored_matrix import FactoredMatrix
from wmresearch.algebra.orthogonalization import rank_cutoff
from wmresearch.algebra.products import matmul, transpose
from wmresearch.algebra.spectrum import thin_svd

Threshold = float | Float[Array, "*batch"]


def nuclear(matrix: FactoredMatrix, threshold: Threshold) -> FactoredMatrix:
    """The prox of t ‖·‖_*: N = U (S − t)₊ Vᵀ (Cai et al. 2010), as A' = A − U (1 − √k) UᵀA, B' = B − B V (1 − √k) Vᵀ.

    k = (σ − t)₊ / σ for each singular direction, half of it to each factor, so A'B' = U √k S √k Vᵀ. Both projections
    are functions of M, so a step from A G, G⁻¹ B ends at A' G, G⁻¹ B'. Directions with σ ≤ 4 ε σ_1 are left as they
    are. A direction cut to 0 is 0 in both factors: no gradient of the loss through A B brings it back.
    """
    u, s, vt = thin_svd(matrix.a, matrix.b)
    counts = rank_cutoff(s)
    kept = jnp.maximum(s - _over(threshold, s), 0) / jnp.where(counts, s, 1)
    cut = jnp.where(counts, 1 - jnp.sqrt(kept), 0)
    left = matmul(u, cut[..., :, None] * matmul(transpose(u), matrix.a))
    right = matmul(matmul(matrix.b, transpose(vt)) * cut[..., None, :], vt)
    return FactoredMatrix(matrix.a - left, matrix.b - right)


def l1(matrix: FactoredMatrix, threshold: Threshold) -> FactoredMatrix:
    """The prox of t (‖A‖_1 + ‖B‖_1), entry by entry: sign(x) (|x| − t)₊.

    Of the factors, and so gauge-dependent: the prox of the product's L1 norm is not of rank r.
    """
    return FactoredMatrix(
        *(jnp.sign(x) * jnp.maximum(jnp.abs(x) - _over(threshold, x), 0) for x in (matrix.a, matrix.b))
    )


def group_lasso(
    matrix: FactoredMatrix, threshold: Threshold, groups: Literal["rows", "columns"] = "rows"
) -> FactoredMatrix:
    """The prox of t Σ ‖M_g‖ over the rows or the columns of M: each is scaled by (1 − t / ‖M_g‖)₊.

    Exactly that on the rows of A, or the columns of B. Blocks have no such step: the result is not of rank r.
    """
    lengths = matrix.row_norms() if groups == "rows" else matrix.column_norms()
    scale = jnp.maximum(lengths - _over(threshold, lengths), 0) / jnp.where(lengths > 0, lengths, 1)
    scale = jnp.where(lengths > 0, scale, 1)
    if groups == "rows":
        return FactoredMatrix(matrix.a * scale[..., :, None], matrix.b)
    return FactoredMatrix(matrix.a, matrix.b * scale[..., None, :])


def _over(threshold: Threshold, x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """The threshold with as many axes as x."""
    t = jnp.asarray(threshold, x.dtype)
    return jnp.broadcast_to(t.reshape(t.shape + (1,) * (x.ndim - t.ndim)), x.shape)

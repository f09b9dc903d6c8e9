"""What is looked at in heads' maps M_i = A_i B_i: spectra, balance, overlap, copying. Finite for zero heads."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from wmresearch.algebra import decompositions, norms, spectrum
from wmresearch.algebra.factored_matrix import FactoredMatrix
from wmresearch.algebra.products import gram, matmul, safe_divide, transpose


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SpectrumStatistics:
    """Of each matrix of a batch; all 0 for a zero matrix."""

    singular_values: Float[Array, "*batch r"]
    """σ_1 ≥ … ≥ σ_r"""
    effective_rank: Float[Array, "*batch"]
    """exp(−Σ p ln p), p = σ / Σσ"""
    stable_rank: Float[Array, "*batch"]
    """‖M‖_F² / ‖M‖₂²"""
    r95: Int[Array, "*batch"]
    """the least k that holds 95 % of Σσ²"""
    nuclear_norm: Float[Array, "*batch"]
    frobenius_norm: Float[Array, "*batch"]
    spectral_norm: Float[Array, "*batch"]
    imbalance: Float[Array, "*batch"]
    """‖AᵀA − BBᵀ‖_F / (‖AᵀA‖_F + ‖BBᵀ‖_F): 0 for balanced factors, at most 1. Of the factors, not of M"""


def spectrum_statistics(matrix: FactoredMatrix) -> SpectrumStatistics:
    """All of them from one decomposition."""
    s = matrix.singular_values()
    gram_a, gram_b = gram(matrix.a), gram(transpose(matrix.b))
    size = jnp.linalg.norm(gram_a, axis=(-1, -2)) + jnp.linalg.norm(gram_b, axis=(-1, -2))
    return SpectrumStatistics(
        singular_values=s,
        effective_rank=spectrum.effective_rank(s),
        stable_rank=spectrum.stable_rank(s),
        r95=spectrum.energy_rank(s),
        nuclear_norm=jnp.sum(s, axis=-1),
        frobenius_norm=jnp.linalg.norm(s, axis=-1),
        spectral_norm=s[..., 0],
        imbalance=safe_divide(jnp.linalg.norm(gram_a - gram_b, axis=(-1, -2)), size),
    )


def head_overlap(matrix: FactoredMatrix) -> Float[Array, "*batch h h"]:
    """⟨M_i, M_j⟩_F / (‖M_i‖_F ‖M_j‖_F) of all pairs of a layer's heads: 1 on the diagonal; 0 beside a zero head."""
    return norms.head_cosines(matrix.a, matrix.b)


def copying_score(
    matrix: FactoredMatrix, embedding_vd: Float[Array, "v d"], unembedding_dv: Float[Array, "d v"]
) -> Float[Array, "*batch"]:
    """Σ λ / Σ |λ| over the eigenvalues λ of the vocabulary × vocabulary matrix E M U; 0 if all of them are.

    Row x of E M U is what a head adds to the logits where it attends to token x: at +1 it raises the tokens that it
    sees (it copies), at −1 it lowers them (Elhage et al. 2021, A Mathematical Framework for Transformer Circuits).
    The eigenvalues are those of the r × r matrix B (U E) A. Imaginary parts come in pairs and cancel in the sum.
    """
    product = matmul(matmul(matrix.b, matmul(unembedding_dv, embedding_vd)), matrix.a)
    values = decompositions.eigenvalues(product)
    return safe_divide(jnp.sum(values.real, axis=-1), jnp.sum(jnp.abs(values), axis=-1))

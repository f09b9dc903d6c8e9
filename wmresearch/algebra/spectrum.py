"""Singular values and vectors of M = A B, and what is read off them. Never M itself."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Int

from wmresearch.algebra import decompositions
from wmresearch.algebra.orthogonalization import orthonormalize, polar_factor, rank_cutoff
from wmresearch.algebra.products import matmul, safe_divide, transpose

Factors = tuple[Float[Array, "*batch m r"], Float[Array, "*batch r n"]]


def thin_svd(
    a: Float[Array, "*batch m r"], b: Float[Array, "*batch r n"], basis: Callable = orthonormalize
) -> tuple[Float[Array, "*batch m r"], Float[Array, "*batch r"], Float[Array, "*batch r n"]]:
    """M = U S Vᵀ, σ falling: A = Q_A R_A, Bᵀ = Q_B R_B by `basis`, the SVD of the r × r core R_A R_Bᵀ. O((m + n) r²).

    With the default basis a zero column of A, or row of B, leaves vectors that belong to σ = 0 shorter than 1;
    `householder` makes all of them orthonormal, many times slower.
    """
    of_a, of_b = basis(a), basis(transpose(b))
    u, s, vt = decompositions.svd(matmul(of_a.triangle, transpose(of_b.triangle)))
    return of_a.times(u), s, transpose(of_b.times(transpose(vt)))


@jax.custom_jvp
def singular_values(a: Float[Array, "*batch m r"], b: Float[Array, "*batch r n"]) -> Float[Array, "*batch r"]:
    """σ_1 ≥ … ≥ σ_r of A B, with dσ_i = u_iᵀ (dA B + A dB) v_i, and 0 where σ_i ≤ 4 ε σ_1.

    The rule never divides by σ or by a gap between two of them, so it is finite at zero, tiny and repeated ones (where
    it gives the derivative along one choice of vectors: sums over the repeated ones are right). First derivatives only.
    """
    r_a, r_b = orthonormalize(a).triangle, orthonormalize(transpose(b)).triangle
    return decompositions.singular_values(matmul(r_a, transpose(r_b)))


@singular_values.defjvp
def _singular_values_jvp(primals: Factors, tangents: Factors) -> tuple[Array, Array]:
    (a, b), (da, db) = primals, tangents
    u, s, vt = thin_svd(a, b)
    ut, v = transpose(u), transpose(vt)
    through_a = jnp.sum(matmul(ut, da) * transpose(matmul(b, v)), axis=-1)
    through_b = jnp.sum(matmul(ut, a) * transpose(matmul(db, v)), axis=-1)
    return s, (through_a + through_b) * rank_cutoff(s)


def nuclear_norm_gradient(
    a: Float[Array, "*batch m r"], b: Float[Array, "*batch r n"]
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch m r"], Float[Array, "*batch r n"]]:
    """‖AB‖_* = Σ σ, ∇_A = U Vᵀ Bᵀ and ∇_B = Aᵀ U Vᵀ, with the thin rank-k U and V.

    No SVD: with A = Q_A R_A, Bᵀ = Q_B R_B and W = U Vᵀ of the core C = R_A R_Bᵀ, the norm is ⟨W, C⟩ and the gradients
    are Q_A (W R_B) and (R_Aᵀ W) Q_Bᵀ.
    """
    of_a, of_b = orthonormalize(a), orthonormalize(transpose(b))
    core = matmul(of_a.triangle, transpose(of_b.triangle))
    w = polar_factor(core)
    gradient_a = of_a.times(matmul(w, of_b.triangle))
    gradient_b = transpose(of_b.times(matmul(transpose(w), of_a.triangle)))
    return jnp.sum(w * core, axis=(-1, -2)), gradient_a, gradient_b


@jax.custom_jvp
def nuclear_norm(a: Float[Array, "*batch m r"], b: Float[Array, "*batch r n"]) -> Float[Array, "*batch"]:
    """‖AB‖_* = Σ σ, with the subgradient of `nuclear_norm_gradient`. First derivatives only."""
    return nuclear_norm_gradient(a, b)[0]


@nuclear_norm.defjvp
def _nuclear_norm_jvp(primals: Factors, tangents: Factors) -> tuple[Array, Array]:
    norm, gradient_a, gradient_b = nuclear_norm_gradient(*primals)
    da, db = tangents
    return norm, jnp.sum(gradient_a * da, axis=(-1, -2)) + jnp.sum(gradient_b * db, axis=(-1, -2))


def schatten_norm(s: Float[Array, "*batch r"], p: float) -> Float[Array, "*batch"]:
    """(Σ σ^p)^{1/p}, max σ for p = ∞; finite with its gradient at zero. For 0 < p < 1 a quasi-norm.

    Raises ValueError unless p > 0.
    """
    if not p > 0:
        raise ValueError(f"schatten_norm: p is {p}, expected a number above 0 (1 is the nuclear norm, 2 Frobenius)")
    largest = jnp.max(s, axis=-1)
    if p == jnp.inf:
        return largest
    # relative to the largest, which cancels in the derivative: no power of a tiny number, none of zero
    scale = jax.lax.stop_gradient(jnp.where(largest > 0, largest, 1))
    counts = rank_cutoff(s)
    powers = jnp.sum(jnp.where(counts, jnp.where(counts, s / scale[..., None], 1) ** p, 0), axis=-1)
    positive = powers > 0
    return jnp.where(positive, scale * jnp.where(positive, powers, 1) ** (1 / p), 0)


def effective_rank(s: Float[Array, "*batch r"]) -> Float[Array, "*batch"]:
    """exp(−Σ p ln p), p = σ / Σσ (Roy & Vetterli 2007); 0 for a zero matrix.

    A diagnostic: as a loss it is ill posed, being free of scale and without a finite gradient at σ = 0.
    """
    total = jnp.sum(s, axis=-1)
    p = safe_divide(s, total[..., None])
    entropy = -jnp.sum(p * jnp.log(jnp.where(p > 0, p, 1)), axis=-1)
    return jnp.where(total > 0, jnp.exp(entropy), 0)


def stable_rank(s: Float[Array, "*batch r"]) -> Float[Array, "*batch"]:
    """‖M‖_F² / ‖M‖₂² = Σ (σ / σ_1)²; 0 for a zero matrix. A diagnostic, ill posed as a loss."""
    return jnp.sum(safe_divide(s, jnp.max(s, axis=-1, keepdims=True)) ** 2, axis=-1)


def energy_rank(s: Float[Array, "*batch r"], share: float = 0.95) -> Int[Array, "*batch"]:
    """The least k with Σ_{i ≤ k} σ_i² ≥ share Σ σ_i², for falling σ; r95 by default, 0 for a zero matrix."""
    relative = safe_divide(s, s[..., :1])
    energy = jnp.cumsum(relative * relative, axis=-1)
    short = jnp.sum(energy < share * energy[..., -1:], axis=-1)
    return jnp.where(s[..., 0] > 0, short + 1, 0)


def eigenvalues(a: Float[Array, "*batch n r"], b: Float[Array, "*batch r n"]) -> Complex[Array, "*batch r"]:
    """The r eigenvalues of the r × r matrix B A: those of A B, whose other n − r are zero. Order: LAPACK's."""
    return decompositions.eigenvalues(matmul(b, a))

"""Orthonormal bases and polar factors from matrix products, with LAPACK's way where those are not accurate.

Householder QR of many thin matrices and the SVD of their small cores are slow everywhere: LAPACK takes the matrices one
by one, accelerators take the columns one by one. Both functions here iterate with batched products instead, for the
whole batch at once, until a measured residual says that they are done. Where it never does (rank-deficient matrices),
one `lax.cond` for the whole batch takes LAPACK's answer. Under `vmap` a `cond` computes both branches: give these
functions the batch as leading axes instead.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from wmresearch.algebra.decompositions import cholesky_and_inverse, qr, svd
from wmresearch.algebra.products import gram, matmul, safe_divide, safe_length, transpose

_PASSES = 5
"""Two do for condition 1e3, three for 1e6 (float32); a matrix that needs more has no full rank."""
_LEAST_STEPS = 5
"""A σ that began at the cut-off has grown past 32 ε by then, so that it is not taken for zero before it arrives."""


def rank_cutoff(s: Float[Array, "*batch r"]) -> Bool[Array, "*batch r"]:
    """σ_i > 4 ε max σ: which singular values count. Rounding leaves about ε max σ of an exact zero."""
    return s > 4 * jnp.finfo(s.dtype).eps * jnp.max(s, axis=-1, keepdims=True)


class Basis(NamedTuple):
    """A = Q R with Q = A₁ T, kept as these two: what is wanted of Q is mostly a product Q X = A₁ (T X)."""

    source: Float[Array, "*batch m r"]
    """A₁: A itself, or what it became"""
    transform: Float[Array, "*batch r r"]
    """T"""
    triangle: Float[Array, "*batch r r"]
    """R, upper triangular"""

    def times(self, x: Float[Array, "*batch r k"]) -> Float[Array, "*batch m k"]:
        """Q x."""
        return matmul(self.source, matmul(self.transform, x))


def householder(a: Float[Array, "*batch m r"]) -> Basis:
    """QᵀQ = I whatever the rank of A: LAPACK's QR, many times slower than `orthonormalize`."""
    q, triangle = qr(a)
    return Basis(q, _identity(triangle), triangle)


def orthonormalize(a: Float[Array, "*batch m r"]) -> Basis:
    """QᵀQ = I except that a zero column of A has one in Q and in R; "zero" is a length below √(tiny / ε).

    Cholesky QR on columns scaled to length 1, so that zero columns (ranks padded to a common r) and badly scaled ones
    cost nothing: with S AᵀA S = L Lᵀ, T = S L⁻ᵀ and R = Lᵀ S⁻¹. Its error is ε times the squared condition, so this is
    all where the mean of 1 / λ of L Lᵀ, which is ‖L⁻¹‖_F² / r, is at most 4: conditions of up to about 5. Else it is
    repeated, on all, and where that fails it is Householder QR.
    """
    g = gram(a)
    eye = _identity(g)
    length = safe_length(jnp.diagonal(g, axis1=-2, axis2=-1))
    shrink = safe_divide(jnp.ones_like(length), length)
    empty = eye * (length == 0)[..., None, :]  # stands in the Gram for the columns that are zero
    scaled = g * shrink[..., :, None] * shrink[..., None, :] + empty
    lower, inverse = cholesky_and_inverse(scaled)
    good = jnp.max(jnp.sum(inverse * inverse, axis=(-1, -2)), initial=0) <= 4 * a.shape[-1]  # no, if it is NaN

    def once(a: Float[Array, "*batch m r"]) -> Basis:
        return Basis(a, shrink[..., :, None] * transpose(inverse), transpose(lower) * length[..., None, :])

    def again(a: Float[Array, "*batch m r"]) -> Basis:
        basis = _repeated_cholesky(a, shrink, scaled - empty, empty)
        return basis._replace(triangle=basis.triangle * length[..., None, :])

    return lax.cond(good, once, again, a)


def _repeated_cholesky(
    a: Float[Array, "*batch m r"],
    shrink: Float[Array, "*batch r"],
    g: Float[Array, "*batch r r"],
    empty: Float[Array, "*batch r r"],
) -> Basis:
    """The basis of A S: shifted Cholesky QR (Fukaya et al. 2020, arXiv 1809.11085), until |QᵀQ − I| ≤ 32 ε.

    With G = QᵀQ + s I and L Lᵀ = G, Q ← Q L⁻ᵀ and R ← Lᵀ R. The shift s = r ε min(1, |QᵀQ − I|) keeps the first
    factorization defined and vanishes with the error that it would otherwise leave.
    """
    eps, r, eye = jnp.finfo(a.dtype).eps, a.shape[-1], _identity(g)

    def error(g: Float[Array, "*batch r r"]) -> Float[Array, ""]:
        return jnp.max(jnp.abs(g + empty - eye), initial=0)

    def unfinished(state: tuple) -> Bool[Array, ""]:
        passes, _, _, g = state
        return (passes < _PASSES) & ~(error(g) <= 32 * eps)  # ~(≤) and not >: a NaN goes on, then falls back

    def one_pass(state: tuple) -> tuple:
        passes, q, triangle, g = state
        # The inverse and a product, since a triangular solve with m right-hand sides is 20 times slower on CPUs. What
        # that loses is not seen: the next pass makes it up, and R stays the product of the Lᵀ.
        lower, inverse = cholesky_and_inverse(g + empty + r * eps * jnp.minimum(error(g), 1) * eye)
        q = matmul(q, transpose(inverse))
        return passes + 1, q, matmul(transpose(lower), triangle), gram(q)

    start = a * shrink[..., None, :]
    _, q, triangle, g = lax.while_loop(unfinished, one_pass, (jnp.int32(0), start, eye, g))
    return lax.cond(error(g) <= 32 * eps, lambda _: Basis(q, eye, triangle), householder, start)


def _identity(like: Float[Array, "*batch r r"]) -> Float[Array, "*batch r r"]:
    return jnp.broadcast_to(jnp.eye(like.shape[-1], dtype=like.dtype), like.shape)


def polar_factor(core: Float[Array, "*batch r r"]) -> Float[Array, "*batch r r"]:
    """U Vᵀ of the thin rank-k SVD core = U S Vᵀ, with k = the number of σ_i > 4 ε max σ.

    Newton–Schulz of order 5: X ← X + X (E/2 + 3/8 E²), E = I − XᵀX, from X = core / ‖core‖_S4 (Higham, Functions of
    Matrices, 2008, ch. 8). Only products; each σ grows 15/8 times a step towards 1, exact zeros stay zero. Done when a
    step changes no entry by more than 32 ε; by then a σ that is still that small began below the cut-off. The steps
    suffice for σ = 4 ε max σ; smaller ones that they leave between 0 and 1 send the whole batch to the SVD and its
    sharp cut-off.
    """
    eps, r, eye = jnp.finfo(core.dtype).eps, core.shape[-1], _identity(core)
    most = math.ceil(math.log(r**0.25 / (4 * eps), 15 / 8)) + 4  # S4 overestimates the largest σ by at most r^¼
    x = safe_divide(core, jnp.max(jnp.abs(core), axis=(-1, -2), keepdims=True, initial=0))
    x = safe_divide(x, jnp.sqrt(jnp.linalg.norm(gram(x), axis=(-1, -2), keepdims=True)))

    def unfinished(state: tuple) -> Bool[Array, ""]:
        steps, _, change = state
        return (steps < _LEAST_STEPS) | (steps < most) & ~(change <= 32 * eps)

    def one_step(state: tuple) -> tuple:
        steps, x, _ = state
        e = eye - gram(x)
        change = matmul(x, e / 2 + 3 / 8 * matmul(e, e))
        return steps + 1, x + change, jnp.max(jnp.abs(change), initial=0)

    _, w, change = lax.while_loop(unfinished, one_step, (jnp.int32(0), x, jnp.asarray(1, core.dtype)))

    def by_svd(core: Float[Array, "*batch r r"]) -> Float[Array, "*batch r r"]:
        u, s, vt = svd(core)
        return matmul(u * rank_cutoff(s)[..., None, :], vt)

    return lax.cond(change <= 32 * eps, lambda _: w, by_svd, core)

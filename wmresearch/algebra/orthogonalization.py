"""Orthonormal bases and polar factors from matrix products, with LAPACK's way where those are not accurate.

Householder QR of many thin matrices and the SVD of their small cores are slow everywhere: LAPACK takes the matrices one
by one, accelerators take the columns one by one. Both functions here iterate with batched products instead, for the
whole batch at once, until a measured residual says that they are done. Where it never does (rank-deficient matrices),
one `lax.cond` for the whole batch takes LAPACK's answer. Under `vmap` a `cond` computes both branches: give these
functions the batch as leading axes instead.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from wmresearch.algebra.decompositions import cholesky_and_inverse, qr, svd
from wmresearch.algebra.products import gram, matmul, safe_divide, transpose

_PASSES = 5
"""Two orthonormalize condition 1e3, three 1e6 (float32); a matrix that needs more has no full rank."""
_LEAST_STEPS = 8
"""A σ that began at the cut-off has grown past 32 ε by then, so that it is not taken for zero before it arrives."""


def rank_cutoff(s: Float[Array, "*batch r"]) -> Bool[Array, "*batch r"]:
    """σ_i > 4 ε max σ: which singular values count. Rounding leaves about ε max σ of an exact zero."""
    return s > 4 * jnp.finfo(s.dtype).eps * jnp.max(s, axis=-1, keepdims=True)


def orthonormalize(a: Float[Array, "*batch m r"]) -> tuple[Float[Array, "*batch m r"], Float[Array, "*batch r r"]]:
    """A = Q R, QᵀQ = I except that a zero column of A has a zero column in Q and in R; R upper triangular.

    Shifted Cholesky QR (Fukaya et al. 2020, arXiv 1809.11085), repeated until |QᵀQ − I| ≤ 32 ε: with G = QᵀQ + s I and
    L Lᵀ = G, Q ← Q L⁻ᵀ and R ← Lᵀ R. The shift s = r ε min(1, |QᵀQ − I|) keeps the first factorization defined and
    vanishes with the error it would otherwise leave. Columns are first scaled to length 1, so zero columns (ranks
    padded to a common r) and badly scaled ones cost nothing. Householder QR for the whole batch where that fails.
    """
    dtype, r = a.dtype, a.shape[-1]
    eps, eye = jnp.finfo(dtype).eps, jnp.broadcast_to(jnp.eye(r, dtype=dtype), (*a.shape[:-2], r, r))
    largest = jnp.max(jnp.abs(a), axis=-2, keepdims=True)  # the squares of tiny entries would vanish
    scaled = safe_divide(a, largest)
    length = jnp.sqrt(jnp.sum(scaled * scaled, axis=-2, keepdims=True))
    unit = safe_divide(scaled, length)
    empty = eye * (length == 0)  # stands in G for the columns that are zero

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

    start = (jnp.int32(0), unit, eye, gram(unit))
    _, q, triangle, g = lax.while_loop(unfinished, one_pass, start)
    return lax.cond(error(g) <= 32 * eps, lambda _: (q, triangle * (length * largest)), qr, a)


def polar_factor(core: Float[Array, "*batch r r"]) -> Float[Array, "*batch r r"]:
    """U Vᵀ of the thin rank-k SVD core = U S Vᵀ, with k = the number of σ_i > 4 ε max σ.

    Newton–Schulz, X ← X (3 I − XᵀX) / 2 from X = core / ‖core‖_S4 (Higham, Functions of Matrices, 2008, ch. 8): only
    products, each σ grows 1.5 times a step towards 1, exact zeros stay zero. Done when a step changes no entry by more
    than 16 ε; by then a σ that is still that small began below the cut-off. The steps suffice for σ = 4 ε max σ;
    smaller ones that they leave between 0 and 1 send the whole batch to the SVD and its sharp cut-off.
    """
    eps, r = jnp.finfo(core.dtype).eps, core.shape[-1]
    most = math.ceil(math.log(r**0.25 / (4 * eps), 1.5)) + 5  # S4 overestimates the largest σ by at most r^¼
    x = safe_divide(core, jnp.max(jnp.abs(core), axis=(-1, -2), keepdims=True, initial=0))
    x = safe_divide(x, jnp.sqrt(jnp.linalg.norm(gram(x), axis=(-1, -2), keepdims=True)))

    def unfinished(state: tuple) -> Bool[Array, ""]:
        steps, _, change = state
        return (steps < _LEAST_STEPS) | (steps < most) & ~(change <= 32 * eps)

    def one_step(state: tuple) -> tuple:
        steps, x, _ = state
        change = matmul(x, gram(x)) - x
        return steps + 1, x - change / 2, jnp.max(jnp.abs(change), initial=0)

    _, w, change = lax.while_loop(unfinished, one_step, (jnp.int32(0), x, jnp.asarray(1, core.dtype)))

    def by_svd(core: Float[Array, "*batch r r"]) -> Float[Array, "*batch r r"]:
        u, s, vt = svd(core)
        return matmul(u * rank_cutoff(s)[..., None, :], vt)

    return lax.cond(change <= 32 * eps, lambda _: w, by_svd, core)

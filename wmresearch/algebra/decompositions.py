"""Decompositions of batches of small matrices: on CPUs LAPACK's, one matrix at a time; else the accelerator's own.

jaxlib's CPU kernels hand a *batch* to XLA's own thread pool and block one of its threads until it is done. Two such
calls that run at the same time (QR of A beside QR of B, or one call on each of several devices of a process) can hold
all threads and wait for ever: on 2 cores, after some tens of calls. A call for one matrix runs where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import sequential_vmap
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Complex, Float


def _by_platform(decompose: Callable[[Array], Any], x: Float[Array, "*batch m n"]) -> Any:
    def one_by_one(x: Float[Array, "*batch m n"]) -> Any:
        call = sequential_vmap(decompose)
        for _ in x.shape[:-2]:
            call = jax.vmap(call)
        return call(x)

    return lax.platform_dependent(x, cpu=one_by_one, default=decompose)


def qr(a: Float[Array, "*batch m r"]) -> tuple[Float[Array, "*batch m r"], Float[Array, "*batch r r"]]:
    """A = Q R by Householder reflections: QᵀQ = I whatever the rank of A, R upper triangular."""
    q, r = _by_platform(lambda a: tuple(jnp.linalg.qr(a)), a)
    return q, r


def svd(a: Float[Array, "*batch r r"]) -> tuple[Array, Array, Array]:
    """U, σ falling, Vᵀ of a square matrix."""
    u, s, vt = _by_platform(lambda a: tuple(jnp.linalg.svd(a, full_matrices=False)), a)
    return u, s, vt


def singular_values(a: Float[Array, "*batch r r"]) -> Float[Array, "*batch r"]:
    """σ falling."""
    return _by_platform(lambda a: jnp.linalg.svd(a, compute_uv=False), a)


def eigenvalues(a: Float[Array, "*batch r r"]) -> Complex[Array, "*batch r"]:
    """Of a general matrix, in no order."""
    return _by_platform(lambda a: jnp.linalg.eigvals(a), a)


def cholesky_and_inverse(
    g: Float[Array, "*batch r r"],
) -> tuple[Float[Array, "*batch r r"], Float[Array, "*batch r r"]]:
    """L with L Lᵀ = G, lower triangular, and L⁻¹; NaN where G is not positive definite."""

    def decompose(g: Float[Array, "*batch r r"]) -> tuple[Array, Array]:
        lower = lax.linalg.cholesky(g, symmetrize_input=False)
        eye = jnp.broadcast_to(jnp.eye(g.shape[-1], dtype=g.dtype), g.shape)
        return lower, solve_triangular(lower, eye, lower=True)

    lower, inverse = _by_platform(decompose, g)
    return lower, inverse

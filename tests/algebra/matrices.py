"""Factored matrices of every kind that a head can come to, and what plain numpy says about them.

Few shapes, so that a compiled function serves many examples.
"""

import numpy as np
from hypothesis import strategies as st

from wmresearch.algebra import FactoredMatrix

SHAPES = [(9, 7, 3), (6, 6, 6)]
BATCH = 2
REGULAR = ["random", "graded", "gauge", "small"]
SINGULAR = ["zero", "zero_a", "zero_b", "zero_column", "deficient"]
KINDS = [*REGULAR, *SINGULAR, "repeated", "tiny"]


def orthonormal(rng, m, r):
    return np.linalg.qr(rng.standard_normal((m, r)))[0]


def with_spectrum(rng, m, n, s):
    """A, B of A B = U diag(s) Vᵀ, balanced but for a random rotation between them."""
    u, v, g = orthonormal(rng, m, len(s)), orthonormal(rng, n, len(s)), orthonormal(rng, len(s), len(s))
    return u * np.sqrt(s) @ g, g.T @ (v * np.sqrt(s)).T


def factors(kind, shape, seed):
    """One pair A `[m, r]`, B `[r, n]`."""
    m, n, r = shape
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((m, r)), rng.standard_normal((r, n))
    match kind:
        case "graded":
            return with_spectrum(rng, m, n, np.geomspace(1, 1e-3, r))
        case "gauge":
            g = orthonormal(rng, r, r) * np.geomspace(1, 1e-2, r)
            return a @ g, np.linalg.solve(g, b)
        case "small":
            return 1e-9 * a, 1e-9 * b
        case "zero":
            return 0 * a, 0 * b
        case "zero_a":
            return 0 * a, b
        case "zero_b":
            return a, 0 * b
        case "zero_column":
            a[:, 0] = 0
            b[-1] = 0
        case "deficient":
            a = a @ rng.standard_normal((r, 1)) @ rng.standard_normal((1, r))
        case "repeated":
            return with_spectrum(rng, m, n, np.ones(r))
        case "tiny":
            return with_spectrum(rng, m, n, np.array([1.0] * (r - 1) + [1e-8]))
    return a, b


@st.composite
def pairs(draw, kinds=KINDS, shapes=SHAPES):
    """A, B as numpy arrays `[BATCH, m, r]`, `[BATCH, r, n]`, each of the batch of its own kind."""
    shape = draw(st.sampled_from(shapes))
    chosen = [draw(st.sampled_from(kinds)) for _ in range(BATCH)]
    seed = draw(st.integers(0, 2**16))
    a, b = zip(*(factors(kind, shape, seed + i) for i, kind in enumerate(chosen)), strict=True)
    return np.stack(a), np.stack(b)


def factored(pair, dtype=None):
    import jax.numpy as jnp

    return FactoredMatrix(*(jnp.asarray(x, dtype) for x in pair))


def scale(pair):
    """‖A‖ ‖B‖: what rounding in A B is relative to."""
    a, b = pair
    return float(np.max(np.linalg.norm(a, axis=(-2, -1)) * np.linalg.norm(b, axis=(-2, -1))))


def svd(pair):
    a, b = (np.asarray(x, np.float64) for x in pair)
    u, s, vt = np.linalg.svd(a @ b, full_matrices=False)
    r = a.shape[-1]
    return u[..., :r], s[..., :r], vt[..., :r, :]


def difference_quotient(function, pair, direction, step=1e-6):
    """(f(A + h dA, B + h dB) − f(A − h dA, B − h dB)) / 2h, of a function of numpy arrays."""
    forward = function(*(x + step * d for x, d in zip(pair, direction, strict=True)))
    backward = function(*(x - step * d for x, d in zip(pair, direction, strict=True)))
    return (float(forward) - float(backward)) / (2 * step)

"""Identities 2 to 8, on values and on gradients, of every kind of matrix."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.algebra.matrices import REGULAR, difference_quotient, factored, factors, pairs, scale, svd
from wmresearch.algebra import FactoredMatrix
from wmresearch.algebra.spectrum import schatten_norm

few = settings(max_examples=20)

NORMS = {
    "nuclear": FactoredMatrix.nuclear_norm,
    "spectral": FactoredMatrix.spectral_norm,
    "frobenius": FactoredMatrix.frobenius_norm,
    "rows": lambda m: jnp.sum(m.row_norms(), -1),
    "columns": lambda m: jnp.sum(m.column_norms(), -1),
    "blocks": lambda m: jnp.sum(m.block_norms(3, 1), (-1, -2)),
    "l1": FactoredMatrix.l1_norm,
}


def dense_norms(a, b):
    m = a @ b
    s = svd((a, b))[1]
    blocks = m.reshape(*m.shape[:-2], -1, 3, m.shape[-1])
    return {
        "nuclear": s.sum(-1),
        "spectral": s[..., 0],
        "schatten_3": (s**3).sum(-1) ** (1 / 3),
        "schatten_half": np.sqrt(s).sum(-1) ** 2,
        "frobenius": np.linalg.norm(m, axis=(-2, -1)),
        "rows": np.linalg.norm(m, axis=-1).sum(-1),
        "columns": np.linalg.norm(m, axis=-2).sum(-1),
        "blocks": np.linalg.norm(blocks, axis=-2).sum((-1, -2)),
        "l1": np.abs(m).sum((-1, -2)),
    }


@jax.jit
def values_and_gradients(matrix):
    """Of all norms in one program: the norm of each matrix, the gradient of the sum."""
    found = {}
    s, to_factors = jax.vjp(FactoredMatrix.singular_values, matrix)  # once, for what takes long to compile
    for name, p in (("schatten_3", 3), ("schatten_half", 0.5)):
        value, to_spectrum = jax.vjp(lambda s, p=p: schatten_norm(s, p), s)
        found[name] = value, to_factors(to_spectrum(jnp.ones_like(value))[0])[0]
    for name, norm in NORMS.items():
        value, pull_back = jax.vjp(norm, matrix)
        found[name] = value, pull_back(jnp.ones_like(value))[0]
    return found


@few
@given(pairs())
def test_values_are_those_of_the_dense_matrix_and_gradients_are_finite(pair):
    expected = dense_norms(*pair)
    for name, (value, gradient) in values_and_gradients(factored(pair)).items():
        # √ turns a relative error ε of σ's scale into √ε: the quasi-norm, and sums of squares where M is about 0
        loose = 2e-7 if name in ("schatten_half", "frobenius", "rows", "columns", "blocks") else 1e-12
        np.testing.assert_allclose(value, expected[name], rtol=1e-12, atol=loose * 10 * scale(pair), err_msg=name)
        assert np.all(np.isfinite(gradient.a)), name
        assert np.all(np.isfinite(gradient.b)), name


@few
@given(pairs(kinds=["random", "gauge"]), st.integers(0, 100))
def test_gradients_are_difference_quotients(pair, seed):
    rng = np.random.default_rng(seed)
    direction = [rng.standard_normal(x.shape) * np.abs(x).max() for x in pair]
    for name, (_, gradient) in values_and_gradients(factored(pair)).items():
        if name == "l1":  # kinks at each zero entry: its own test
            continue
        terms = list(zip((gradient.a, gradient.b), direction, strict=True))
        slope = sum(float(np.sum(g * d)) for g, d in terms)
        size = sum(float(np.linalg.norm(g) * np.linalg.norm(d)) for g, d in terms)
        quotient = lambda step, name=name: difference_quotient(
            lambda a, b: dense_norms(a, b)[name].sum(), pair, direction, step
        )
        expected = (4 * quotient(1e-7) - quotient(2e-7)) / 3  # √σ bends sharply where σ is small: of the fourth order
        np.testing.assert_allclose(slope, expected, rtol=1e-5, atol=2e-5 * size, err_msg=name)


def test_l1_gradient_over_several_tiles_is_the_sign_matrix():
    pair = factors("random", (70, 40, 3), 0)
    value, gradient = jax.jit(jax.value_and_grad(FactoredMatrix.l1_norm))(factored(pair))
    a, b = pair
    sign = np.sign(a @ b)
    np.testing.assert_allclose(value, np.abs(a @ b).sum())
    np.testing.assert_allclose(gradient.a, sign @ b.T, atol=1e-11)
    np.testing.assert_allclose(gradient.b, a.T @ sign, atol=1e-11)


@few
@given(pairs())
def test_nuclear_gradient_is_identity_4(pair):
    """∇_A = U Vᵀ Bᵀ, ∇_B = Aᵀ U Vᵀ with the thin U, V of rank k; at full rank there is no other choice."""
    a, b = pair
    u, s, vt = svd(pair)
    _, gradient = values_and_gradients(factored(pair))["nuclear"]
    for i in range(len(a)):
        positive = s[i] > 1e-13 * max(s[i].max(), 1e-300)
        w = u[i] * positive @ vt[i]
        clear = s[i][positive].min(initial=1) if positive.any() else 1
        tolerance = 1e-13 * scale(pair) / max(clear, 1e-12) + 1e-9
        if s[i].max() > 1e-13 * scale(pair):
            size = np.linalg.norm(a[i]) + np.linalg.norm(b[i])
            np.testing.assert_allclose(gradient.a[i], w @ b[i].T, atol=tolerance * size)
            np.testing.assert_allclose(gradient.b[i], a[i].T @ w, atol=tolerance * size)


@few
@given(pairs(kinds=REGULAR), st.integers(0, 100))
def test_identity_8_gradient_of_the_squared_frobenius_norm(pair, seed):
    a, b = pair
    gradient = squared_gradient(factored(pair))
    np.testing.assert_allclose(gradient.a, a @ (b @ b.swapaxes(-1, -2)), rtol=1e-9, atol=1e-12 * scale(pair) ** 1.5)
    np.testing.assert_allclose(gradient.b, (a.swapaxes(-1, -2) @ a) @ b, rtol=1e-9, atol=1e-12 * scale(pair) ** 1.5)


squared_gradient = jax.jit(jax.grad(lambda m: 0.5 * jnp.sum(m.inner(m))))


@few
@given(pairs(kinds=["random", "graded", "repeated", "deficient", "zero_column"]), st.integers(0, 100))
def test_identity_6_nothing_depends_on_the_gauge(pair, seed):
    """All norms and products of (A G, G⁻¹ B) are those of (A, B); gradients transform as G⁻ᵀ and Gᵀ."""
    a, b = pair
    r = a.shape[-1]
    rng = np.random.default_rng(seed)
    g = rng.standard_normal((len(a), r, r)) + 3 * np.eye(r)
    other = (a @ g, np.linalg.solve(g, b))
    size = scale(pair) + scale(other)
    before, after = values_and_gradients(factored(pair)), values_and_gradients(factored(other))
    for name in before:
        loose = 1e-6 if name in ("schatten_half", "frobenius", "rows", "columns", "blocks") else 1e-12
        np.testing.assert_allclose(before[name][0], after[name][0], rtol=1e-10, atol=loose * size, err_msg=name)
    if np.min(svd(pair)[1]) > 1e-6:
        for name in ("nuclear", "frobenius"):
            there, here = after[name][1], before[name][1]
            np.testing.assert_allclose(there.a @ g.swapaxes(-1, -2), here.a, atol=1e-8 * size)
            np.testing.assert_allclose(np.linalg.solve(g.swapaxes(-1, -2), there.b), here.b, atol=1e-8 * size)


@few
@given(pairs())
def test_identity_1_least_factor_decay_is_the_nuclear_norm(pair):
    """½(‖A‖² + ‖B‖²) ≥ ‖AB‖_*, with equality for balanced factors."""
    decay = lambda a, b: 0.5 * (np.sum(np.square(a), (-1, -2)) + np.sum(np.square(b), (-1, -2)))
    nuclear = svd(pair)[1].sum(-1)
    balanced = balance(factored(pair))
    np.testing.assert_allclose(decay(balanced.a, balanced.b), nuclear, rtol=1e-12, atol=1e-13 * scale(pair))
    assert np.all(decay(*pair) >= nuclear * (1 - 1e-12))


balance = jax.jit(FactoredMatrix.balance)


@few
@given(pairs())
def test_singular_values_and_their_derivatives(pair):
    """σ as numpy has it; Σ w_i σ_i has slope Σ w_i u_iᵀ dM v_i in forward and in reverse mode."""
    rng = np.random.default_rng(0)
    direction = [rng.standard_normal(x.shape) for x in pair]
    s, forward, reverse = both_modes(factored(pair), factored(direction))
    np.testing.assert_allclose(s, svd(pair)[1], rtol=1e-12, atol=1e-13 * scale(pair))
    np.testing.assert_allclose(forward, reverse, rtol=1e-10, atol=1e-10 * (1 + scale(pair)))
    assert np.isfinite(forward)


@jax.jit
def both_modes(matrix, direction):
    weighted = lambda m: jnp.sum(m.singular_values() @ jnp.arange(1.0, m.rank + 1))
    forward = jax.jvp(weighted, (matrix,), (direction,))[1]
    s, pull_back = jax.vjp(FactoredMatrix.singular_values, matrix)
    gradient = pull_back(jnp.broadcast_to(jnp.arange(1.0, matrix.rank + 1), s.shape))[0]
    return s, forward, jnp.sum(gradient.a * direction.a) + jnp.sum(gradient.b * direction.b)


def test_identity_3_svd_of_the_core_keeps_small_singular_values():
    """A σ of 1e-8 beside 1 keeps its leading digits; the eigenvalues of a Gram matrix would lose it."""
    pair = factors("tiny", (9, 7, 3), 0)
    s = jax.jit(FactoredMatrix.singular_values)(factored(pair))
    np.testing.assert_allclose(s[-1], 1e-8, rtol=1e-6)


def test_schatten_norms_between_the_others():
    matrix = factored(factors("random", (9, 7, 3), 0))
    one, two, infinite, nuclear, frobenius, spectral = jax.jit(
        lambda m: (
            *(m.schatten_norm(p) for p in (1, 2, jnp.inf)),
            *(m.nuclear_norm(), m.frobenius_norm(), m.spectral_norm()),
        )
    )(matrix)
    np.testing.assert_allclose([one, two, infinite], [nuclear, frobenius, spectral], rtol=1e-12)


def test_a_zero_matrix_has_norm_and_rank_zero():
    kinds = [factors(kind, (9, 7, 3), 0) for kind in ("zero", "zero_a", "zero_b")]
    matrix = factored(tuple(np.stack(x) for x in zip(*kinds, strict=True)))
    ranks = jax.jit(lambda m: (m.effective_rank(), m.stable_rank(), m.nuclear_norm(), m.l1_norm()))(matrix)
    np.testing.assert_array_equal(ranks, 0)


def test_vmap_and_leading_axes_agree():
    """`vmap` turns the `cond`s into selects; the answer stays."""
    pair = tuple(np.stack(x) for x in zip(*(factors(k, (9, 7, 3), 0) for k in ("random", "deficient")), strict=True))
    norm = jax.jit(FactoredMatrix.nuclear_norm)
    batched = norm(factored(pair))
    mapped = jax.jit(jax.vmap(FactoredMatrix.nuclear_norm))(factored(pair))
    np.testing.assert_allclose(batched, mapped, rtol=1e-12)
    nested = factored(tuple(x[None, None] for x in pair))
    assert jax.eval_shape(FactoredMatrix.nuclear_norm, nested).shape == (1, 1, 2)

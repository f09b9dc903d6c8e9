import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from tests.algebra.matrices import factored, factors, pairs, scale, svd
from wmresearch.algebra import FactoredMatrix, penalties

few = settings(max_examples=20)
ONE = [(9, 7, 3)]  # the norms' own tests see the others

PENALTIES = {
    "nuclear": penalties.nuclear,
    "frobenius": penalties.frobenius,
    "spectral": penalties.spectral,
    "l1": penalties.l1,
    "rows": penalties.group_lasso,
    "columns": lambda m: penalties.group_lasso(m, "columns"),
    "blocks": lambda m: penalties.group_lasso(m, (3, 1)),
    "head_overlap": penalties.head_overlap,
    "factor_decay": penalties.factor_decay,
    "orthogonal_factors": penalties.orthogonal_factors,
}
GAUGE_DEPENDENT = {"factor_decay", "orthogonal_factors"}


def column_overlap(a):
    cosines = a.T @ a / np.maximum(np.outer(*[np.linalg.norm(a, axis=0)] * 2), 1e-300)
    return (np.sum(cosines**2) - np.sum(np.diag(cosines) ** 2)) / 2


def dense_penalties(a, b):
    m, s = a @ b, svd((a, b))[1]
    first, second = m.reshape(2, -1)
    lengths = np.linalg.norm(first) * np.linalg.norm(second)
    return {
        "nuclear": s.sum(),
        "frobenius": 0.5 * np.sum(m * m),
        "spectral": s[:, 0].sum(),
        "l1": np.abs(m).sum(),
        "rows": np.linalg.norm(m, axis=-1).sum(),
        "columns": np.linalg.norm(m, axis=-2).sum(),
        "blocks": np.linalg.norm(m.reshape(2, -1, 3, m.shape[-1]), axis=-2).sum(),
        "head_overlap": (first @ second / lengths) ** 2 if lengths else 0.0,
        "factor_decay": 0.5 * (np.sum(a * a) + np.sum(b * b)),
        "orthogonal_factors": sum(column_overlap(x) + column_overlap(y.T) for x, y in zip(a, b, strict=True)),
    }


@jax.jit
def values_and_gradients(matrix):
    return {name: jax.value_and_grad(penalty)(matrix) for name, penalty in PENALTIES.items()}


@few
@given(pairs(shapes=ONE))
def test_values_are_those_of_the_dense_matrices_and_gradients_are_finite(pair):
    expected = dense_penalties(*pair)
    for name, (value, gradient) in values_and_gradients(factored(pair)).items():
        assert value.shape == ()
        np.testing.assert_allclose(value, expected[name], rtol=1e-7, atol=1e-6 * scale(pair) + 1e-15, err_msg=name)
        assert np.all(np.isfinite(gradient.a)), name
        assert np.all(np.isfinite(gradient.b)), name


@few
@given(pairs(kinds=["random", "graded"], shapes=ONE))
def test_functions_of_the_map_alone_do_not_see_the_gauge(pair):
    a, b = pair
    r = a.shape[-1]
    g = np.random.default_rng(0).standard_normal((2, r, r)) + 3 * np.eye(r)
    here = values_and_gradients(factored(pair))
    there = values_and_gradients(factored((a @ g, np.linalg.solve(g, b))))
    for name in PENALTIES:
        same = np.isclose(here[name][0], there[name][0], rtol=1e-7)
        assert same == (name not in GAUGE_DEPENDENT), name


overlap_and_gradient = jax.jit(jax.value_and_grad(penalties.head_overlap))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [0, 1e-30, 1e-12, 1])
def test_overlap_and_its_gradient_are_finite_beside_a_head_of_any_size(size, dtype):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 9, 3)), rng.standard_normal((2, 3, 7))
    a[1] *= size
    value, gradient = overlap_and_gradient(factored((a, b), dtype))
    assert np.isfinite(value)
    assert np.all(np.isfinite(gradient.a))
    assert np.all(np.isfinite(gradient.b))
    if size == 0:
        assert value == 0


def test_schatten_is_the_sum_of_the_norms():
    matrix = factored(tuple(np.stack([x, 2 * x]) for x in factors("random", (9, 7, 3), 0)))
    value, norms = jax.jit(lambda m: (penalties.schatten(m, 2), m.frobenius_norm()))(matrix)
    np.testing.assert_allclose(value, np.sum(norms), rtol=1e-12)


def test_heads_with_the_same_map_overlap_fully():
    a, b = (np.stack([x, -2 * x]) for x in factors("random", (9, 7, 3), 0))
    assert overlap_and_gradient(factored((a, b)))[0] == pytest.approx(1)


def test_orthogonal_factors_is_zero_for_an_svd_and_not_else():
    pair = factors("random", (9, 7, 3), 0)
    matrix = factored(tuple(x[None] for x in pair))
    both = jax.jit(lambda m: (penalties.orthogonal_factors(m.balance()), penalties.orthogonal_factors(m)))
    balanced, plain = both(matrix)
    assert float(balanced) == pytest.approx(0, abs=1e-25)
    assert float(plain) > 1e-3


def test_grouped_heads_are_one_stacked_matrix():
    """Heads that share A: factor decay's least value is the nuclear norm of [M_1 … M_g], not the sum of the heads'."""
    rng = np.random.default_rng(0)
    shared, b = rng.standard_normal((2, 2, 9, 3)), rng.standard_normal((2, 4, 3, 7))  # 2 layers, 2 groups of 2 heads
    heads = FactoredMatrix(jnp.repeat(jnp.asarray(shared), 2, axis=1), jnp.asarray(b))
    stacked = penalties.stack_group(heads, 2)
    assert stacked.shape == (2, 2, 9, 14)
    dense = np.asarray(heads.dense())
    expected = np.concatenate([dense[:, 0::2], dense[:, 1::2]], axis=-1)
    np.testing.assert_allclose(stacked.dense(), expected, atol=1e-12)

    nuclear = np.linalg.svd(expected, compute_uv=False).sum()
    least = jax.jit(lambda m: (penalties.nuclear(m), penalties.factor_decay(m.balance())))(stacked)
    np.testing.assert_allclose(least, nuclear, rtol=1e-12)
    assert nuclear < 0.9 * np.linalg.svd(dense, compute_uv=False).sum()

    # the gradient reaches the shared factor once
    grouped = lambda a: penalties.stack_group(FactoredMatrix(jnp.repeat(a, 2, 1), heads.b), 2)
    gradient = jax.jit(jax.grad(lambda a: penalties.factor_decay(grouped(a))))(jnp.asarray(shared))
    np.testing.assert_allclose(gradient, shared, rtol=1e-12)
    with pytest.raises(ValueError, match="give a divisor"):
        penalties.stack_group(heads, 3)

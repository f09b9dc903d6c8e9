"""A proximal step is right if its optimality condition holds: (M − N) / t is a subgradient of the penalty at N."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.algebra.matrices import factored, factors, pairs, scale, svd
from wmresearch.algebra import penalties, proxes

few = settings(max_examples=20)
nuclear, rows, columns = (
    jax.jit(f)
    for f in (
        proxes.nuclear,
        proxes.group_lasso,
        lambda m, t: proxes.group_lasso(m, t, "columns"),
    )
)
l1 = jax.jit(proxes.l1)


@few
@given(pairs(), st.sampled_from([0.0, 0.01, 0.5, 100.0]))
def test_nuclear_soft_thresholds_singular_values(pair, relative):
    """Identity 5: Z = (M − N) / t has UᵀZV = I on N's support, and ‖Z‖₂ ≤ 1."""
    a, b = pair
    t = relative * max(float(svd(pair)[1].max()), 1e-12)
    after = nuclear(factored(pair), t)
    m, n = a @ b, np.asarray(after.dense())
    size = scale(pair)
    np.testing.assert_allclose(svd((after.a, after.b))[1], np.maximum(svd(pair)[1] - t, 0), atol=1e-12 * size)
    if t > 1e-9 * size:
        z = (m - n) / t
        assert np.all(np.linalg.norm(z, 2, axis=(-2, -1)) <= 1 + 1e-11 * size / t)
        u, s, vt = np.linalg.svd(n, full_matrices=False)
        for i in range(len(n)):
            k = int(np.sum(s[i] > 1e-6 * max(size, 1e-300)))
            np.testing.assert_allclose(u[i, :, :k].T @ z[i] @ vt[i, :k].T, np.eye(k), atol=1e-7 * (1 + size / t))


@few
@given(pairs(kinds=["random", "graded", "gauge"]), st.integers(0, 100))
def test_nuclear_keeps_the_gauge(pair, seed):
    """From (A G, G⁻¹ B) it ends at (A' G, G⁻¹ B'): moments that belong to A and B stay with them."""
    a, b = pair
    r = a.shape[-1]
    g = np.random.default_rng(seed).standard_normal((2, r, r)) + 3 * np.eye(r)
    t = 0.1 * float(svd(pair)[1].max())
    here, there = nuclear(factored(pair), t), nuclear(factored((a @ g, np.linalg.solve(g, b))), t)
    size = scale(pair)
    np.testing.assert_allclose(there.a, here.a @ g, atol=1e-8 * (1 + size))
    np.testing.assert_allclose(there.b, np.linalg.solve(g, here.b), atol=1e-8 * (1 + size))


@few
@given(pairs())
def test_a_step_of_size_zero_changes_nothing_and_a_small_one_little(pair):
    matrix = factored(pair)
    for step in (nuclear, rows, columns, l1):
        after = step(matrix, 0.0)
        np.testing.assert_allclose(after.a, matrix.a, rtol=1e-13, atol=1e-13 * np.abs(matrix.a).max())
        np.testing.assert_allclose(after.b, matrix.b, rtol=1e-13, atol=1e-13 * np.abs(matrix.b).max())
    t = 1e-3 * float(svd(pair)[1].min())
    after = nuclear(matrix, t)
    np.testing.assert_allclose(after.a, matrix.a, atol=1e-3 * np.linalg.norm(pair[0]))
    np.testing.assert_allclose(after.b, matrix.b, atol=1e-3 * np.linalg.norm(pair[1]))


def test_a_factor_beside_a_zero_one_is_left_to_learn():
    """B = 0 makes M = 0, which any threshold maps to 0: A, through which B learns, has no reason to vanish."""
    matrix = factored(factors("zero_b", (9, 7, 3), 0))
    for step in (nuclear, rows):
        np.testing.assert_array_equal(step(matrix, 0.5).a, matrix.a)


@few
@given(pairs(), st.sampled_from([0.01, 0.5, 100.0]))
def test_group_steps_shrink_each_row_or_column(pair, t):
    m = pair[0] @ pair[1]
    for step, axis in ((rows, -1), (columns, -2)):
        after = np.asarray(step(factored(pair), t).dense())
        lengths = np.linalg.norm(m, axis=axis, keepdims=True)
        expected = m * np.maximum(1 - t / np.maximum(lengths, 1e-300), 0)
        np.testing.assert_allclose(after, expected, atol=1e-6 * scale(pair))


@few
@given(pairs(), st.sampled_from([0.01, 0.5, 100.0]))
def test_l1_shrinks_each_entry_of_the_factors(pair, t):
    after = l1(factored(pair), t)
    for found, x in zip((after.a, after.b), pair, strict=True):
        z = (x - np.asarray(found)) / t
        assert np.all(np.abs(z) <= 1 + 1e-12)
        np.testing.assert_allclose(z[found != 0], np.sign(found)[found != 0], atol=1e-9)


@pytest.mark.parametrize(
    ("step", "penalty"),
    [
        (nuclear, penalties.nuclear),
        (rows, penalties.group_lasso),
        (columns, lambda m: penalties.group_lasso(m, "columns")),
    ],
)
def test_no_point_nearby_is_better(step, penalty):
    """½ ‖N − M‖² + t · penalty(N) grows in every direction from N, the penalty taken from the penalties' own code."""
    pair, t = factors("random", (9, 7, 3), 0), 0.7
    matrix = factored(tuple(x[None] for x in pair))
    best = step(matrix, t)
    objective = jax.jit(lambda n: 0.5 * ((n.dense() - matrix.dense()) ** 2).sum() + t * penalty(n))
    rng = np.random.default_rng(0)
    for _ in range(20):
        moved = jax.tree.map(lambda x: x + 1e-3 * rng.standard_normal(x.shape), best)
        assert objective(moved) > objective(best)


def test_a_threshold_for_each_matrix():
    pair = tuple(np.stack([x, x]) for x in factors("random", (9, 7, 3), 0))
    for step in (nuclear, rows, columns, l1):
        after = step(factored(pair), np.array([0.0, 1e9]))
        np.testing.assert_allclose(after.dense()[0], (pair[0] @ pair[1])[0], atol=1e-12)
        np.testing.assert_allclose(after.dense()[1], 0, atol=1e-12)

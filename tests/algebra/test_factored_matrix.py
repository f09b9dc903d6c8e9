import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.algebra.matrices import factored, factors, pairs, scale, svd
from wmresearch.algebra import FactoredMatrix

few = settings(max_examples=15)


@jax.jit
def products(matrix, x, y):
    """Every product with M, and what stands for it when M is dense."""
    m = matrix.dense()
    other = FactoredMatrix(matrix.b.swapaxes(-1, -2)[..., :2], matrix.a.swapaxes(-1, -2)[..., :2, :])
    return [
        (matrix.T.dense(), m.swapaxes(-1, -2)),
        (matrix @ x, m @ x),
        (matrix @ x[:, None], m @ x[:, None]),
        (y @ matrix, y @ m),
        (y[None] @ matrix, y[None] @ m),
        ((matrix @ other).dense(), m @ other.dense()),
        ((other @ matrix).dense(), other.dense() @ m),
        (matrix.inner(FactoredMatrix(2 * matrix.a, matrix.b)), 2 * jnp.sum(m * m, (-1, -2))),
    ]


@few
@given(pairs())
def test_products_are_those_of_the_dense_matrix(pair):
    matrix = factored(pair)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(matrix.shape[-1]), rng.standard_normal(matrix.shape[-2])
    for found, expected in products(matrix, x, y):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-11 * max(scale(pair), scale(pair) ** 2))


def test_a_product_of_two_has_the_lower_rank():
    matrix = factored(factors("random", (9, 7, 3), 0))
    other = factored(factors("random", (7, 8, 2), 1))
    assert (matrix @ other).rank == 2
    assert (other.T @ matrix.T).rank == 2
    assert (matrix @ other).shape == (9, 8)
    assert isinstance(np.ones((1, 9)) @ matrix, jax.Array)


@jax.jit
def all_factorizations(matrix, g, covariance):
    return {
        "svd": matrix.svd(),
        "balance": matrix.balance(),
        "gauge": matrix.change_gauge(g),
        "truncate": matrix.truncate(2),
        "whitened": matrix.truncate(2, covariance),
        "eigenvalues": matrix.eigenvalues() if matrix.shape[-1] == matrix.shape[-2] else jnp.zeros(0),
    }


@few
@given(pairs(), st.integers(0, 100))
def test_factorizations(pair, seed):
    rng = np.random.default_rng(seed)
    a, b = pair
    m, (_, s, _), size, r = a @ b, svd(pair), scale(pair), a.shape[-1]
    x = rng.standard_normal((50, a.shape[-2])) * np.geomspace(1, 100, a.shape[-2])
    g = rng.standard_normal((*a.shape[:-2], r, r)) + 3 * np.eye(r)
    found = all_factorizations(factored(pair), g, x.T @ x / 50)
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-11 * size)

    u, sigma, vt = found["svd"]
    close(u * sigma[..., None, :] @ vt, m)
    close(sigma, s)
    np.testing.assert_allclose(u.swapaxes(-1, -2) @ u, np.broadcast_to(np.eye(r), g.shape), atol=1e-12)
    np.testing.assert_allclose(vt @ vt.swapaxes(-1, -2), np.broadcast_to(np.eye(r), g.shape), atol=1e-12)
    assert np.all(np.diff(sigma) <= 0)

    balanced = found["balance"]
    close(balanced.a @ balanced.b, m)
    close(balanced.a.swapaxes(-1, -2) @ balanced.a, balanced.b @ balanced.b.swapaxes(-1, -2))
    np.testing.assert_allclose(found["gauge"].dense(), m, atol=1e-9 * size)

    # Eckart and Young: the error of the best rank 2 is what is left of the spectrum
    plain, whitened = found["truncate"], found["whitened"]
    assert plain.rank == whitened.rank == 2
    error = np.linalg.norm(m - np.asarray(plain.dense()), axis=(-2, -1))
    np.testing.assert_allclose(error, np.linalg.norm(s[..., 2:], axis=-1), rtol=1e-7, atol=1e-10 * size)

    # identity 10: the whitened one is the best for these inputs
    least = np.linalg.norm(np.linalg.svd(x @ m, compute_uv=False)[..., 2:], axis=-1)
    output_error = lambda t: np.linalg.norm(x @ (m - np.asarray(t.dense())), axis=(-2, -1))
    np.testing.assert_allclose(output_error(whitened), least, rtol=1e-7, atol=1e-8 * size)
    assert np.all(output_error(whitened) <= output_error(plain) + 1e-8 * size)


def test_whitened_truncation_is_better_by_much_where_inputs_are_skewed():
    a, b = factors("random", (9, 7, 3), 0)
    x = np.random.default_rng(1).standard_normal((200, 9)) * np.geomspace(1, 1e-2, 9)
    matrix = factored((a, b))
    plain, whitened = jax.jit(lambda m, c: (m.truncate(1), m.truncate(1, c)))(matrix, x.T @ x)
    error = lambda t: np.linalg.norm(x @ (a @ b - np.asarray(t.dense())))
    assert error(whitened) < 0.8 * error(plain)


@pytest.mark.parametrize("kind", ["random", "graded", "gauge"])
def test_eigenvalues_are_those_of_the_dense_matrix(kind):
    pair = factors(kind, (6, 6, 3), 0)
    found = np.sort_complex(np.asarray(jax.jit(FactoredMatrix.eigenvalues)(factored(pair))))
    expected = np.linalg.eigvals(pair[0] @ pair[1])
    largest = np.sort_complex(expected[np.argsort(-np.abs(expected))][:3])
    np.testing.assert_allclose(found, largest, atol=1e-10)


def test_it_is_a_pytree_under_jit_vmap_and_grad():
    a, b = np.ones((4, 9, 3)), np.ones((4, 3, 7))
    matrix = factored((a, b))
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(matrix)[0]]
    assert names == [".a", ".b"]
    assert matrix.shape == (4, 9, 7)
    assert matrix.rank == 3
    # leaves of any shape may stand in it on the way through jax
    assert jax.tree.map(jnp.sum, matrix).a.shape == ()
    assert jax.tree.map(lambda _: None, matrix).a is None
    assert jax.vmap(lambda m: m.T, out_axes=2)(matrix).a.shape == (7, 3, 4)
    assert jax.vmap(FactoredMatrix.dense, in_axes=(FactoredMatrix(0, 0),))(matrix).shape == (4, 9, 7)
    assert jax.eval_shape(FactoredMatrix.dense, matrix).shape == (4, 9, 7)
    gradient = jax.grad(lambda m: jnp.sum(m.dense()))(matrix)
    assert isinstance(gradient, FactoredMatrix)


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        ((9, 3), (2, 7), "same rank"),
        ((9, 8), (8, 7), "rank 8 is more than min(m, n) = 7"),
        ((4, 9, 3), (3, 7), "leading axes"),
        ((3,), (3, 7), "expected matrices"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(a, b, says):
    with pytest.raises(ValueError) as error:
        FactoredMatrix(jnp.zeros(a), jnp.zeros(b))
    assert says in str(error.value)
    assert str(list(a)) in str(error.value)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m: m.truncate(4), "expected 1 to 3"),
        (lambda m: m.truncate(0), "expected 1 to 3"),
        (lambda m: m.eigenvalues(), "square"),
        (lambda m: jax.eval_shape(lambda m: m.schatten_norm(0), m), "above 0"),
        (lambda m: m.block_norms(2, 7), "divisor of 9"),
    ],
)
def test_impossible_requests_are_refused(call, says):
    matrix = FactoredMatrix(jnp.zeros((9, 3)), jnp.zeros((3, 7)))
    with pytest.raises(ValueError) as error:
        call(matrix)
    assert says in str(error.value)


def _intermediates(jaxpr):
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            yield variable.aval
        for value in jax.tree.leaves(equation.params, is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _intermediates(inner)


EVERYTHING = {
    "nuclear": lambda m: m.nuclear_norm(),
    "spectral": lambda m: m.spectral_norm(),
    "schatten": lambda m: m.schatten_norm(3),
    "frobenius": lambda m: m.frobenius_norm(),
    "inner": lambda m: m.inner(FactoredMatrix(m.a + 1, m.b)),
    "rows": lambda m: m.row_norms().sum(),
    "columns": lambda m: m.column_norms().sum(),
    "blocks": lambda m: m.block_norms(16, 16).sum(),
    "l1": lambda m: m.l1_norm(),
    "products": lambda m: (m @ m.T @ jnp.ones(64)).sum() + (jnp.ones(64) @ m).sum(),
}


@pytest.mark.parametrize("name", EVERYTHING)
def test_no_array_of_the_size_of_the_matrix_in_values_and_gradients(name):
    """Only L1 holds entries of M, a tile at a time."""
    matrix = FactoredMatrix(jnp.zeros((64, 3)), jnp.zeros((3, 96)))
    jaxpr = jax.make_jaxpr(jax.value_and_grad(EVERYTHING[name]))(matrix).jaxpr
    largest = max(np.prod(aval.shape) for aval in _intermediates(jaxpr))
    assert largest <= (32 * 96 if name == "l1" else 3 * 96 * 2)


@pytest.mark.parametrize("name", ["svd", "truncate", "balance"])
def test_no_array_of_the_size_of_the_matrix_in_factorizations(name):
    matrix = FactoredMatrix(jnp.zeros((64, 3)), jnp.zeros((3, 96)))
    call = {"svd": FactoredMatrix.svd, "balance": FactoredMatrix.balance, "truncate": lambda m: m.truncate(2)}[name]
    assert max(np.prod(aval.shape) for aval in _intermediates(jax.make_jaxpr(call)(matrix).jaxpr)) < 64 * 96


def test_the_search_for_large_arrays_finds_one():
    matrix = FactoredMatrix(jnp.zeros((64, 3)), jnp.zeros((3, 96)))
    nested = jax.jit(lambda m: jax.lax.cond(m.a[0, 0] > 0, lambda m: m.dense(), lambda m: m.dense() + 1, m).sum())
    assert max(np.prod(aval.shape) for aval in _intermediates(jax.make_jaxpr(nested)(matrix).jaxpr)) == 64 * 96

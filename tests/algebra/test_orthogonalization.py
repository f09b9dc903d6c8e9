import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from tests.algebra.matrices import pairs
from wmresearch.algebra.decompositions import qr
from wmresearch.algebra.orthogonalization import orthonormalize, polar_factor

few = settings(max_examples=20)
polar = jax.jit(polar_factor)


@jax.jit
def basis(a):
    found = orthonormalize(a)
    return found.times(jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), found.triangle.shape)), found.triangle


@few
@given(pairs())
def test_a_basis_is_orthonormal_and_gives_the_matrix_back(pair):
    a = pair[0]
    q, r = (np.asarray(x) for x in basis(a))
    np.testing.assert_allclose(q @ r, a, rtol=1e-12, atol=1e-14 * np.abs(a).max())
    np.testing.assert_array_equal(np.tril(r, -1), 0)
    gram = q.swapaxes(-1, -2) @ q
    whole = np.broadcast_to(np.eye(a.shape[-1]), gram.shape)
    filled = np.any(a, axis=-2).astype(float)
    # Householder's Q, of the fallback, is orthonormal also where A has a zero column
    assert np.allclose(gram, whole, atol=1e-13) or np.allclose(gram, whole * filled[..., None, :], atol=1e-13)


@few
@given(pairs(shapes=[(6, 6, 6)]))
def test_the_polar_factor_is_u_vt_of_what_is_not_rounding(pair):
    core = pair[0] @ pair[1]
    w = np.asarray(polar(core))
    u, s, vt = np.linalg.svd(core)
    for i in range(len(core)):
        clear = s[i] > 1e-12 * s[i][0]
        if np.all(clear | (s[i] < 1e-16 * s[i][0])):  # else σ lies near the cut-off, and either answer is right
            gap = max(s[i][clear].min(initial=np.inf) / max(s[i][0], 1e-300), 1e-12) if clear.any() else 1
            np.testing.assert_allclose(w[i], u[i] * clear @ vt[i], atol=1e-13 / gap)
        assert np.linalg.norm(w[i], 2) <= 1 + 1e-12


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1e-12, 1e12])
def test_scale_does_not_matter(size, dtype):
    a = np.random.default_rng(0).standard_normal((2, 6, 6))
    expected = np.asarray(basis(jnp.asarray(a, dtype))[0]), np.asarray(polar(jnp.asarray(a, dtype)))
    scaled = np.asarray(basis(jnp.asarray(size * a, dtype))[0]), np.asarray(polar(jnp.asarray(size * a, dtype)))
    for x, y in zip(scaled, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=1e4 * jnp.finfo(dtype).eps)


def test_not_a_number_stays_one():
    """A diverged run must not look healthy."""
    a = np.full((2, 6, 6), np.nan)
    assert np.all(np.isnan(basis(a)[1][..., 0, 0]))
    assert np.any(np.isnan(polar(a)))


@pytest.mark.parametrize("condition", [1, 1e2, 1e4, 1e6])
def test_float32_needs_no_fallback_at_any_condition_that_it_can_tell_from_deficient(condition):
    rng = np.random.default_rng(0)
    u, v = np.linalg.qr(rng.standard_normal((2, 64, 16)))[0], np.linalg.qr(rng.standard_normal((2, 16, 16)))[0]
    a = jnp.asarray(u * np.geomspace(1, 1 / condition, 16) @ v, jnp.float32)
    q, r = (np.asarray(x, np.float64) for x in basis(a))
    np.testing.assert_allclose(q.swapaxes(-1, -2) @ q, np.broadcast_to(np.eye(16), (2, 16, 16)), atol=1e-5)
    np.testing.assert_allclose(q @ r, np.asarray(a, np.float64), atol=2e-6)
    assert np.all(np.diagonal(r, axis1=-2, axis2=-1) > 0)  # Cholesky's sign; LAPACK's QR makes them negative


@pytest.mark.parametrize("small", [1e-3, 1e-5, 1e-6])
def test_a_singular_value_above_the_cut_off_counts_however_soon_the_others_arrive(small):
    """All others are equal and done after a few steps, when the small one has hardly grown."""
    rng = np.random.default_rng(0)
    u, v = np.linalg.qr(rng.standard_normal((2, 2, 6, 6)))[0]
    core = jnp.asarray(u * np.array([1, 1, 1, 1, 1, small]) @ v, jnp.float32)
    np.testing.assert_allclose(np.linalg.svd(np.asarray(polar(core)), compute_uv=False), 1, atol=1e-3)


def test_calls_that_run_at_once_do_not_wait_for_each_other():
    """Batched LAPACK kernels of jaxlib do, for ever, once in some tens of calls on a machine of two cores."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 40, 20)), jnp.float32)
    call = jax.jit(lambda x: [decomposition(x + i) for i in range(3) for decomposition in (qr, orthonormalize)])
    for _ in range(200):
        jax.block_until_ready(call(x))

import jax
import numpy as np
from hypothesis import given, settings

from tests.algebra.matrices import factored, factors, orthonormal, pairs, scale, svd, with_spectrum
from wmresearch.algebra import diagnostics

few = settings(max_examples=20)
statistics = jax.jit(diagnostics.spectrum_statistics)


@few
@given(pairs())
def test_statistics_are_those_of_the_spectrum(pair):
    found = statistics(factored(pair))
    s, size = svd(pair)[1], scale(pair)
    np.testing.assert_allclose(found.singular_values, s, rtol=1e-12, atol=1e-13 * size)
    for i, spectrum in enumerate(s):
        if spectrum[0] <= 1e-12 * size:
            continue
        p = spectrum[spectrum > 0] / spectrum.sum()
        np.testing.assert_allclose(found.effective_rank[i], np.exp(-np.sum(p * np.log(p))), rtol=1e-9)
        np.testing.assert_allclose(found.stable_rank[i], np.sum(spectrum**2) / spectrum[0] ** 2, rtol=1e-9)
        k = int(found.r95[i])
        energy = np.cumsum(spectrum**2) / np.sum(spectrum**2)
        assert energy[k - 1] >= 0.95 - 1e-12
        assert k == 1 or energy[k - 2] < 0.95 + 1e-12
        np.testing.assert_allclose(found.nuclear_norm[i], spectrum.sum())
        np.testing.assert_allclose(found.frobenius_norm[i], np.linalg.norm(spectrum))
        np.testing.assert_allclose(found.spectral_norm[i], spectrum[0])
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(found))
    assert np.all((found.imbalance >= 0) & (found.imbalance <= 1))


known = jax.jit(diagnostics.spectrum_statistics)


def test_statistics_of_known_spectra():
    rng = np.random.default_rng(0)
    spectra = [np.ones(4), np.array([1, 0, 0, 0.0]), np.array([9, 3, 1, 1.0]), np.zeros(4)]
    a, b = (np.stack(x) for x in zip(*(with_spectrum(rng, 9, 7, s) for s in spectra), strict=True))
    found = jax.tree.map(np.asarray, known(factored((a, b))))
    np.testing.assert_allclose(found.effective_rank[[0, 1, 3]], [4, 1, 0], atol=1e-9)
    np.testing.assert_allclose(found.stable_rank, [4, 1, 92 / 81, 0], atol=1e-9)
    np.testing.assert_array_equal(found.r95, [4, 1, 2, 0])
    np.testing.assert_allclose(found.imbalance, 0, atol=1e-12)
    lopsided = known(factored((1e3 * a, b))).imbalance
    np.testing.assert_allclose(lopsided, [1, 1, 1, 0], atol=1e-3)


overlap = jax.jit(diagnostics.head_overlap)


@few
@given(pairs())
def test_overlap_is_a_table_of_cosines(pair):
    m = (pair[0] @ pair[1]).reshape(2, -1)
    lengths = np.linalg.norm(m, axis=-1)
    found = overlap(factored(pair))
    assert np.all(np.abs(found) <= 1 + 1e-6)
    if np.all(lengths > 1e-6 * scale(pair)):
        np.testing.assert_allclose(found, m @ m.T / np.outer(lengths, lengths), atol=1e-9)
    if not np.any(m[0]):
        np.testing.assert_array_equal(found[0], 0)


def test_copying_score_is_that_of_the_whole_vocabulary_matrix():
    rng = np.random.default_rng(0)
    embedding, unembedding = rng.standard_normal((20, 6)), rng.standard_normal((6, 20))
    a, b = (np.stack(x) for x in zip(*(factors(k, (6, 6, 3), 0) for k in ("random", "graded", "zero")), strict=True))
    found = jax.jit(diagnostics.copying_score)(factored((a, b)), embedding, unembedding)
    for i in range(2):
        values = np.linalg.eigvals(embedding @ a[i] @ b[i] @ unembedding)
        np.testing.assert_allclose(found[i], values.sum().real / np.abs(values).sum(), atol=1e-9)
    assert found[2] == 0


def test_a_head_that_copies_scores_one_and_its_negative_minus_one():
    basis = orthonormal(np.random.default_rng(0), 6, 3)
    embedding = orthonormal(np.random.default_rng(1), 20, 6)
    pair = np.stack([basis, -basis]), np.stack([basis.T, basis.T])
    np.testing.assert_allclose(diagnostics.copying_score(factored(pair), embedding, embedding.T), [1, -1], atol=1e-12)

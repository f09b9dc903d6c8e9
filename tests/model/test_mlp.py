"""The MLP's last product is the plain one, in value and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wmresearch.model import mlp
from wmresearch.model.mlp import narrowed


def _with_gradients(product, x, weight, slope):
    value, back = jax.vjp(product, x, weight)
    return value, *back(slope)


def test_value_and_gradients_are_the_plain_ones():
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        x, weight, slope = (jnp.asarray(rng.standard_normal(shape)) for shape in ((24, 20), (20, 5), (24, 5)))
        ours, plain = (
            jax.jit(lambda *a, f=f: _with_gradients(f, *a))(x, weight, slope) for f in (narrowed, jnp.matmul)
        )
        for got, want in zip(ours, plain, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    ("largest", "made", "not_made"), [(100, "f32[5,20]", "f32[20,5]"), (99, "f32[20,5]", "f32[5,20]")]
)
def test_on_cpus_the_gradient_of_small_weights_is_computed_wide(largest, made, not_made, monkeypatch):
    """What the trick is for: the compiled program has a product of `[d, m]`, and none of `[m, d]`."""
    monkeypatch.setattr(mlp, "_WIDE_SIZE", largest)
    x, weight, slope = jnp.ones((24, 20)), jnp.ones((20, 5)), jnp.ones((24, 5))
    compiled = jax.jit(lambda *a: _with_gradients(narrowed, *a)).lower(x, weight, slope).compile().as_text()
    products = [line for line in compiled.splitlines() if " dot(" in line or " custom-call(" in line]
    assert any(made in line.split(" = ")[1].split("{")[0] for line in products), products
    assert not any(not_made in line.split(" = ")[1].split("{")[0] for line in products), products

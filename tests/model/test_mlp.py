"""The MLP's last product is the plain one, in value and gradients."""

import jax
import jax.numpy as jnp
import numpy as np

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


def test_on_cpus_the_gradient_is_computed_wide():
    """What the trick is for: the compiled program has a product of `[d, m]`, and none of `[m, d]`."""
    x, weight, slope = jnp.ones((24, 20)), jnp.ones((20, 5)), jnp.ones((24, 5))
    compiled = jax.jit(lambda *a: _with_gradients(narrowed, *a)).lower(x, weight, slope).compile().as_text()
    products = [line for line in compiled.splitlines() if " dot(" in line or " custom-call(" in line]
    assert any("f32[5,20]" in line.split(" = ")[1].split("{")[0] for line in products), products
    assert not any("f32[20,5]" in line.split(" = ")[1].split("{")[0] for line in products), products

"""Activations that keep little are the plain ones, in value and gradient."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wmresearch.model.activations import ACTIVATIONS

PLAIN = {
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "swiglu": jax.nn.silu,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_value_and_gradient_are_the_plain_ones(name):
    with jax.enable_x64(True):
        x = jnp.asarray(np.concatenate([np.linspace(-40, 40, 801), [-1e-300, 1e3, -1e3]]))
        ours, plain = (
            jax.jit(lambda x, f=f: (f(x), jax.vjp(f, x)[1](jnp.cos(x))[0]))(x) for f in (ACTIVATIONS[name], PLAIN[name])
        )
        for got, want in zip(ours, plain, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_types_are_kept_and_every_value_is_finite(name, dtype):
    x = jnp.linspace(-100, 100, 401, dtype=dtype)
    value, gradient = jax.jit(lambda x: (ACTIVATIONS[name](x), jax.grad(lambda x: ACTIVATIONS[name](x).sum())(x)))(x)
    assert value.dtype == gradient.dtype == x.dtype
    assert jnp.isfinite(value).all() and jnp.isfinite(gradient).all()


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "swiglu"])
def test_the_backward_pass_keeps_only_what_went_in(name):
    x = jnp.linspace(-3, 3, 7)
    (kept,) = [leaf for leaf in jax.tree.leaves(jax.vjp(ACTIVATIONS[name], x)[1]) if jnp.ndim(leaf)]
    np.testing.assert_array_equal(kept, x)
    (first, *others) = [leaf for leaf in jax.tree.leaves(jax.vjp(PLAIN[name], x)[1]) if jnp.ndim(leaf)]
    assert others, first  # what the plain ones keep

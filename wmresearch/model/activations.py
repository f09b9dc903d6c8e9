"""Activations of the MLP whose backward pass keeps the derivative, in place of computing it again.

Without this XLA takes the forward formula (erf, exp, tanh) apart and computes it again within the products of the
backward pass, which on CPUs costs more than the products themselves. The values are the plain ones.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

ValueAndSlope = Callable[[Array], tuple[Array, Array]]


def _gelu(x: Float[Array, "*n"]) -> tuple[Array, Array]:
    """With Φ and φ of the standard normal, x Φ(x); slope Φ(x) + x φ(x). Hendrycks & Gimpel 2016 (arXiv 1606.08415)."""
    below = jax.lax.erfc(-x * 0.5**0.5) / 2
    density = jnp.exp(-x * x / 2) * (2 * jnp.pi) ** -0.5
    return x * below, below + x * density


def _gelu_tanh(x: Float[Array, "*n"]) -> tuple[Array, Array]:
    """½ x (1 + u), u = tanh(√(2/π) (x + 0.044715 x³)): GPT-2's approximation."""
    scale, cubic = (2 / jnp.pi) ** 0.5, 0.044715
    u = jnp.tanh(scale * (x + cubic * x**3))
    inner = scale * (1 + 3 * cubic * x * x)
    return x * (1 + u) / 2, (1 + u) / 2 + x * (1 - u * u) * inner / 2


def _silu(x: Float[Array, "*n"]) -> tuple[Array, Array]:
    """With s = 1 / (1 + exp(−x)), x s; slope s (1 + x (1 − s))."""
    s = jax.nn.sigmoid(x)
    return x * s, s * (1 + x * (1 - s))


def _keeping_slope(both: ValueAndSlope) -> Callable[[Array], Array]:
    @jax.custom_vjp
    def activation(x: Array) -> Array:
        return both(x)[0]

    def forward(x: Array) -> tuple[Array, Array]:
        return jax.lax.optimization_barrier(both(x))  # or XLA would compute the slope again where it is used

    activation.defvjp(forward, lambda slope, cotangent: (slope * cotangent,))
    return activation


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": _keeping_slope(_gelu),
    "gelu_tanh": _keeping_slope(_gelu_tanh),
    "relu": jax.nn.relu,
    "swiglu": _keeping_slope(_silu),
}
"""By the config's name of the MLP; of `swiglu` that of its gate."""

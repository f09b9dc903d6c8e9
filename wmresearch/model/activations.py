"""Activations of the MLP whose backward pass keeps their transcendental part, in place of computing it again.

Without this XLA takes the forward formula (erf, exp, tanh) apart and computes it again within the products of the
backward pass, which on CPUs costs more than the products themselves. The values are the plain ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array


class _Formula(NamedTuple):
    """f(x) by way of u(x), which is dear; f and f' from x and u are cheap."""

    u: Callable[[Array], Array]
    value: Callable[[Array, Array], Array]
    slope: Callable[[Array, Array], Array]


_SCALE, _CUBIC = (2 / jnp.pi) ** 0.5, 0.044715

_GELU = _Formula(
    lambda x: jax.lax.erfc(-x * 0.5**0.5) / 2,
    lambda x, u: x * u,
    lambda x, u: u + x * jnp.exp(-x * x / 2) * (2 * jnp.pi) ** -0.5,
)
"""With Φ and φ of the standard normal, x Φ(x); slope Φ(x) + x φ(x). Hendrycks & Gimpel 2016 (arXiv 1606.08415)."""

_GELU_TANH = _Formula(
    lambda x: jnp.tanh(_SCALE * (x + _CUBIC * x**3)),
    lambda x, u: x * (1 + u) / 2,
    lambda x, u: (1 + u) / 2 + x * (1 - u * u) * _SCALE * (1 + 3 * _CUBIC * x * x) / 2,
)
"""½ x (1 + u), u = tanh(√(2/π) (x + 0.044715 x³)): GPT-2's approximation."""

_SILU = _Formula(jax.nn.sigmoid, lambda x, u: x * u, lambda x, u: u * (1 + x * (1 - u)))
"""With s = 1 / (1 + exp(−x)), x s; slope s (1 + x (1 − s))."""


def _keeping_u(formula: _Formula) -> Callable[[Array], Array]:
    @jax.custom_vjp
    def activation(x: Array) -> Array:
        return formula.value(x, formula.u(x))

    def forward(x: Array) -> tuple[Array, tuple[Array, Array]]:
        u = jax.lax.optimization_barrier(formula.u(x))  # or XLA would compute it again where it is used
        return formula.value(x, u), (x, u)

    activation.defvjp(forward, lambda kept, cotangent: (cotangent * formula.slope(*kept),))
    return activation


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": _keeping_u(_GELU),
    "gelu_tanh": _keeping_u(_GELU_TANH),
    "relu": jax.nn.relu,
    "swiglu": _keeping_u(_SILU),
}
"""By the config's name of the MLP; of `swiglu` that of its gate."""

"""The small parts of a transformer: norms, rotary positions, dropout."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from wmresearch.config.model import ModelConfig
from wmresearch.head_output.weights import Constant, bias, weight

_EPSILON = 1e-5  # of GPT-2's LayerNorm and Llama's RMSNorm alike


class Norm(nnx.Module):
    """LayerNorm γ (x − mean) / √(var + ε) + β, or RMSNorm γ x / √(mean x² + ε), over the last axis; ε = 1e-5.

    The statistics are taken in float32 or better. Ba et al. 2016 (arXiv 1607.06450), Zhang & Sennrich 2019
    (arXiv 1910.07467).
    """

    def __init__(self, model: ModelConfig) -> None:
        self.centre = model.norm == "layernorm"
        self.gain = weight((model.d_model,), Constant(1.0), model.param_dtype, decay=False)
        self.bias = bias((model.d_model,), model.param_dtype) if self.centre and model.bias else None

    def __call__(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        normed = normalize(wide, self.centre).astype(x.dtype)
        shape = (1,) * (x.ndim - 1) + (-1,)
        normed *= self.gain[...].reshape(shape)
        return normed if self.bias is None else normed + self.bias[...].reshape(shape)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def normalize(x: Float[Array, "... d"], centre: bool) -> Float[Array, "... d"]:
    """x̂ = c / √(mean c² + ε) with c = x − mean x, or c = x without `centre`.

    The backward pass keeps x̂ and reads it once more: dx = (dx̂ − mean dx̂ − x̂ mean(x̂ dx̂)) / √(mean c² + ε), without
    the first mean where there is no centre. Autodiff passes over the array twice as often.
    """
    return _normalize_forward(x, centre)[0]


def _normalize_forward(x: Array, centre: bool) -> tuple[Array, tuple[Array, Array]]:
    centred = x - x.mean(-1, keepdims=True) if centre else x
    scale = jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + _EPSILON)
    return centred * scale, (centred * scale, scale)


def _normalize_backward(centre: bool, kept: tuple[Array, Array], slope: Array) -> tuple[Array]:
    normed, scale = kept
    along = jnp.mean(normed * slope, axis=-1, keepdims=True)
    mean = slope.mean(-1, keepdims=True) if centre else 0
    return (scale * (slope - mean - normed * along),)


normalize.defvjp(_normalize_forward, _normalize_backward)


def rotate(x_bthe: Float[Array, "b t h e"], theta: float, start: Int[Array, ""] | int = 0) -> Float[Array, "b t h e"]:
    """Rotary positions: (x₁, x₂) → (x₁ cos φ − x₂ sin φ, x₂ cos φ + x₁ sin φ), φ = t θ^(−2j/e), t counted from `start`.

    x₁, x₂ are the two halves of a head's entries (Llama's pairing), j counts within a half.
    Su et al. 2021 (arXiv 2104.09864).
    """
    _, t, _, e = x_bthe.shape
    wide = jnp.promote_types(x_bthe.dtype, jnp.float32)
    wavelength = theta ** (jnp.arange(0, e, 2, dtype=wide) / e)
    phase = ((start + jnp.arange(t, dtype=wide))[:, None] / wavelength[None, :])[None, :, None, :]
    cos, sin = jnp.cos(phase).astype(x_bthe.dtype), jnp.sin(phase).astype(x_bthe.dtype)
    first, second = jnp.split(x_bthe, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class Chance(NamedTuple):
    """What dropout is drawn by: a token's draws follow from its row of the batch and its position alone.

    So they are the same on one device, on many, and for a batch that is taken in parts.
    """

    key: PRNGKeyArray
    rows: Int[Array, " b"]
    """Of the batch."""
    start: Int[Array, ""] | int = 0
    """The first position."""


def dropout(x_btd: Float[Array, "b t d"], rate: float, chance: Chance | None) -> Float[Array, "b t d"]:
    """Each entry is 0 with probability `rate`, else divided by 1 − rate; x itself where there is no chance."""
    if chance is None or rate == 0:
        return x_btd
    positions = chance.start + jnp.arange(x_btd.shape[1])

    def of_token(row: Array, position: Array) -> Array:
        key = jax.random.fold_in(jax.random.fold_in(chance.key, row), position)
        return jax.random.bernoulli(key, 1 - rate, x_btd.shape[2:])

    kept = jax.vmap(lambda row: jax.vmap(lambda position: of_token(row, position))(positions))(chance.rows)
    return dropped(x_btd, rate, kept)


def dropped(x: Float[Array, ...], rate: float, kept: Bool[Array, ...]) -> Float[Array, ...]:
    """What is kept over 1 − rate, else 0."""
    return jnp.where(kept, x / (1 - rate), 0).astype(x.dtype)


def fold(chance: Chance | None, place: int | Array) -> Chance | None:
    """The chance for one place in the model; None stays None (no dropout)."""
    return None if chance is None else chance._replace(key=jax.random.fold_in(chance.key, place))

"""Causal attention: queries and keys of a layer. What the heads read and write belongs to the head output."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from wmresearch.config.model import ModelConfig, RotaryPositions
from wmresearch.head_output import HeadOutput, make_head_output
from wmresearch.head_output.devices import ONE_DEVICE, Devices
from wmresearch.head_output.weights import (
    PADDING,
    Along,
    Initializer,
    Normal,
    TakenFrom,
    along_heads,
    along_key_heads,
    bias,
    read_axes,
    weight,
)
from wmresearch.model.layers import Chance, fold, rotate
from wmresearch.model.mixing import Heads, attention, attention_after, key_heads


class LayerCache(NamedTuple):
    """What generation keeps of past positions in one layer: keys, and what the heads hold where attention mixes it."""

    keys: Float[Array, "b s k e"]
    values: tuple[Float[Array, "b s v r"], ...]
    """One array for each time that the layer mixes."""


class Attention(nnx.Module):
    """y = Σ_i P_i X M_i with P_i = softmax(causal(Q_i K_iᵀ / √e)), the M_i given by the head output."""

    devices: Devices = ONE_DEVICE
    """Those that share the heads."""
    shards: tuple[int, int] = (1, 1)
    """As many devices have key heads of their own here, and as many others share each one's: `Placement.shards`."""

    def __init__(self, model: ModelConfig, layer: int = 0, first: HeadOutput | None = None) -> None:
        d, e, dtype = model.d_model, model.head_width, model.param_dtype
        self.head_output = make_head_output(model, layer, first)
        everyone = (tuple(range(model.n_heads)), tuple(range(model.kv_heads)))
        heads, key_heads = self.head_output.kept_heads or everyone
        self.numbers = heads
        has_bias = model.bias and heads
        self.query = _of_heads(heads, (d, model.n_heads, e), model, along_heads(1)) if heads else None
        self.key = _of_heads(key_heads, (d, model.kv_heads, e), model, along_key_heads(1)) if heads else None
        self.query_bias = bias((len(heads), e), dtype, along_heads(0)) if has_bias else None
        self.key_bias = bias((len(key_heads), e), dtype, along_key_heads(0)) if has_bias else None
        self.rope_theta = model.positions.theta if isinstance(model.positions, RotaryPositions) else None
        self.dropout, self.width = model.dropout, e

    def __call__(self, x_btd: Float[Array, "b t d"], chance: Chance | None = None) -> Float[Array, "b t d"]:
        if self.query is None:  # no head is left
            return self.head_output(x_btd, attention(*self._queries_keys(x_btd, 0)))
        x_btd = self.devices.enter(x_btd)
        query_bthe, key_btke = self._queries_keys(x_btd, 0)
        heads = Heads(self.devices.own(self.numbers), PADDING in self.numbers, self.shards)
        return self.head_output(x_btd, attention(query_bthe, key_btke, self.dropout, fold(chance, 0), heads))

    def spread(self, devices: Devices, numbers: tuple[int, ...], held: int, shards: tuple[int, int]) -> None:
        """From now on its parameters are those of `held` heads at a time, and devices share the others."""
        self.devices, self.numbers, self.shards = devices, numbers, shards
        self.head_output.spread(devices, numbers, held)

    def _queries_keys(
        self, x_btd: Float[Array, "b t d"], start: Int[Array, ""] | int
    ) -> tuple[Float[Array, "b t h e"], Float[Array, "b t k e"]]:
        """Of positions from `start` on."""
        projected = (
            _project(x_btd, self.query, self.query_bias, self.width),
            _project(x_btd, self.key, self.key_bias, self.width),
        )
        if self.rope_theta is None:
            return projected
        query_bthe, key_btke = (rotate(x, self.rope_theta, start) for x in projected)
        return query_bthe, key_btke

    def continue_with(
        self, x_btd: Float[Array, "b t d"], cache: LayerCache, start: Int[Array, ""] | int
    ) -> tuple[Float[Array, "b t d"], LayerCache]:
        """What `__call__` gives at positions from `start` on, where the cache holds all before; the cache after."""
        query_bthe, key_btke = self._queries_keys(x_btd, start)
        keys = jax.lax.dynamic_update_slice_in_dim(cache.keys, key_btke.astype(cache.keys.dtype), start, axis=1)
        held: list[Array] = []

        def mix(value_btkr: Float[Array, "b t k r"], heads: slice = slice(None), /) -> Float[Array, "b t h r"]:
            old = cache.values[len(held)]
            held.append(jax.lax.dynamic_update_slice_in_dim(old, value_btkr.astype(old.dtype), start, axis=1))
            of_heads = key_heads(heads, query_bthe.shape[2] // keys.shape[2])
            return attention_after(query_bthe[:, :, heads], keys[:, :, of_heads], held[-1], start)

        y_btd = self.head_output(x_btd, mix)
        return y_btd, LayerCache(keys, tuple(held))

    def flops_per_token(self, attended: float) -> float:
        """Forward operations a token in matrix products: queries, keys, scores, and the head output's own."""
        if self.query is None or self.key is None:
            return self.head_output.flops_per_token(attended)
        d, h, e = self.query.shape
        _, k, _ = self.key.shape
        return 2.0 * d * (h + k) * e + 2.0 * h * e * attended + self.head_output.flops_per_token(attended)

    def key_shape(self) -> tuple[int, int]:
        """Key heads, and their width."""
        return (0 if self.key is None else self.key.shape[1], self.width)


def _of_heads(heads: tuple[int, ...], shape: tuple[int, int, int], model: ModelConfig, along: Along) -> nnx.Param:
    """The queries' or keys' weights of some heads, `[d, h, e]`; `shape` is that of all."""
    d, h, e = shape
    init: Initializer = Normal(model.init_std)
    if heads == tuple(range(h)):
        return weight(shape, init, model.param_dtype, axes=read_axes(), along=along)
    axes = replace(read_axes(), of=shape)
    taken = TakenFrom(init, shape, shape, 1, heads)
    return weight((d, len(heads), e), taken, model.param_dtype, axes=axes, along=along)


def _project(
    x_btd: Array, weight_dhe: nnx.Param | None, bias_he: nnx.Param | None, width: int
) -> Float[Array, "b t h e"]:
    """What heads read; of no heads nothing."""
    b, t, d = x_btd.shape
    if weight_dhe is None:
        return jnp.zeros((b, t, 0, width), x_btd.dtype)
    _, h, e = weight_dhe.shape
    out = (x_btd.reshape(b * t, d) @ weight_dhe.reshape(d, h * e)).reshape(b, t, h, e)
    return out if bias_he is None else out + bias_he[...][None, None]

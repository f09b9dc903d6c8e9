"""Causal attention: queries and keys of a layer. What the heads read and write belongs to the head output."""

from __future__ import annotations

from typing import NamedTuple

import jax
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from wmresearch.config.model import ModelConfig, RotaryPositions
from wmresearch.head_output import HeadOutput, make_head_output
from wmresearch.head_output.weights import Normal, bias, read_axes, weight
from wmresearch.model.layers import fold, rotate
from wmresearch.model.mixing import attention, attention_after


class LayerCache(NamedTuple):
    """What generation keeps of past positions in one layer: keys, and what the heads hold where attention mixes it."""

    keys: Float[Array, "b s k e"]
    values: Float[Array, "b s v r"]


class Attention(nnx.Module):
    """y = Σ_i P_i X M_i with P_i = softmax(causal(Q_i K_iᵀ / √e)), the M_i given by the head output."""

    def __init__(self, model: ModelConfig, layer: int = 0, first: HeadOutput | None = None) -> None:
        d, h, k, e = model.d_model, model.n_heads, model.kv_heads, model.head_width
        self.query = weight((d, h, e), Normal(model.init_std), model.param_dtype, axes=read_axes())
        self.key = weight((d, k, e), Normal(model.init_std), model.param_dtype, axes=read_axes())
        self.query_bias = bias((h, e), model.param_dtype) if model.bias else None
        self.key_bias = bias((k, e), model.param_dtype) if model.bias else None
        self.head_output = make_head_output(model, layer, first)
        self.rope_theta = model.positions.theta if isinstance(model.positions, RotaryPositions) else None
        self.dropout = model.dropout

    def __call__(self, x_btd: Float[Array, "b t d"], key: PRNGKeyArray | None = None) -> Float[Array, "b t d"]:
        query_bthe = _project(x_btd, self.query, self.query_bias)
        key_btke = _project(x_btd, self.key, self.key_bias)
        if self.rope_theta is not None:
            query_bthe, key_btke = rotate(query_bthe, self.rope_theta), rotate(key_btke, self.rope_theta)
        return self.head_output(x_btd, attention(query_bthe, key_btke, self.dropout, fold(key, 0)))

    def continue_with(
        self, x_btd: Float[Array, "b t d"], cache: LayerCache, start: Int[Array, ""] | int
    ) -> tuple[Float[Array, "b t d"], LayerCache]:
        """What `__call__` gives at positions from `start` on, where the cache holds all before; the cache after."""
        query_bthe = _project(x_btd, self.query, self.query_bias)
        key_btke = _project(x_btd, self.key, self.key_bias)
        if self.rope_theta is not None:
            query_bthe, key_btke = (rotate(x, self.rope_theta, start) for x in (query_bthe, key_btke))
        keys = jax.lax.dynamic_update_slice_in_dim(cache.keys, key_btke.astype(cache.keys.dtype), start, axis=1)
        held: list[Array] = []

        def mix(value_btkr: Float[Array, "b t k r"]) -> Float[Array, "b t h r"]:
            new = value_btkr.astype(cache.values.dtype)
            held.append(jax.lax.dynamic_update_slice_in_dim(cache.values, new, start, axis=1))
            return attention_after(query_bthe, keys, held[0], start)

        y_btd = self.head_output(x_btd, mix)
        return y_btd, LayerCache(keys, held[0])

    def flops_per_token(self, attended: float) -> float:
        """Forward operations a token in matrix products: queries, keys, scores, and the head output's own."""
        d, h, e = self.query.shape
        _, k, _ = self.key.shape
        return 2.0 * d * (h + k) * e + 2.0 * h * e * attended + self.head_output.flops_per_token(attended)


def _project(x_btd: Array, weight_dhe: nnx.Param, bias_he: nnx.Param | None) -> Float[Array, "b t h e"]:
    b, t, d = x_btd.shape
    _, h, e = weight_dhe.shape
    out = (x_btd.reshape(b * t, d) @ weight_dhe.reshape(d, h * e)).reshape(b, t, h, e)
    return out if bias_he is None else out + bias_he[...][None, None]

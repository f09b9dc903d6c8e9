"""A trained model with heads taken out, or with their maps cut to a lower rank: the same weights, no more training.

A layer is y = Σ_i P_i (X M_i + 1 c_iᵀ) + b, where c_i is what head i writes of its value bias. The rows of P_i sum to
one where there is no dropout, so that for every kind of head output

    y = Σ_i P_i X M_i + (b + Σ_i c_i)

which is a dense head output without value biases. A head that is dropped leaves both sums: its M_i, and its c_i. Cut to
rank k, a map becomes

    N_i = M_i V_k V_kᵀ    V_k: the first k right singular vectors of diag(γ) M_i

so diag(γ) N_i is the best approximation of rank k to the map that the head really applies, the norm's gain γ folded in
(Eckart & Young 1936), and unfolding γ, which may be zero or tiny, takes no division. c_i is not cut.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from wmresearch.algebra import FactoredMatrix
from wmresearch.algebra.products import matmul, transpose
from wmresearch.config.head_output import DenseConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.weights import Params, value_or_none
from wmresearch.model.maps import at_least_float32
from wmresearch.model.transformer import Block, Transformer

Place: TypeAlias = tuple[int, int]
"""(layer, head)"""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Heads:
    """What a model's heads do, in float32 or better; l layers."""

    maps: FactoredMatrix
    """M_i without the norm's gain: A `[l, h, d, r]`, B `[l, h, r, d]`"""
    directions: Float[Array, "l h r d"]
    """V_rᵀ: the right singular vectors of diag(γ) M_i, those of the largest singular values first"""
    norms: Float[Array, "l h"]
    """‖diag(γ) M_i‖_F"""
    written_biases: Float[Array, "l h d"]
    """c_i"""
    output_biases: Float[Array, "l d"]
    """b"""


def dense_config(model: ModelConfig) -> ModelConfig:
    """The same model with free maps, which every other kind of head output can be written as."""
    bias = model.head_output.has_bias(model)
    return model.model_copy(update={"head_output": DenseConfig(bias=bias)})


def make_read_heads(transformer: Transformer) -> Callable[[Params], Heads]:
    """Parameters → what the heads do. One singular value decomposition of each map."""
    graph, _ = nnx.split(transformer)

    def read_heads(params: Params) -> Heads:
        model = nnx.merge(graph, at_least_float32(params))
        maps = [block.attention.head_output.factors() for block in model.blocks]
        rank = max(each.rank for each in maps)
        layers = [_layer(block, _padded(each, rank)) for block, each in zip(model.blocks, maps, strict=True)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)

    return read_heads


def _padded(maps: FactoredMatrix, rank: int) -> FactoredMatrix:
    more = (0, rank - maps.rank)
    return FactoredMatrix(jnp.pad(maps.a, ((0, 0), (0, 0), more)), jnp.pad(maps.b, ((0, 0), more, (0, 0))))


def _layer(block: Block, maps: FactoredMatrix) -> Heads:
    output = block.attention.head_output
    gained = FactoredMatrix(block.attention_norm.gain[...][None, :, None] * maps.a, maps.b)
    _, s, directions = gained.svd()
    bias_d = value_or_none(output.output_bias)
    bias_d = jnp.zeros(maps.a.shape[1], maps.a.dtype) if bias_d is None else bias_d
    return Heads(maps, directions, jnp.linalg.norm(s, axis=-1), output.written_biases(), bias_d)


def weakest(norms: Float[Array, "l h"], count: int) -> list[Place]:
    """The places of so many heads, from the smallest ‖diag(γ) M_i‖_F on, whatever the layer.

    Raises ValueError unless 0 ≤ count ≤ l h.
    """
    flat = np.asarray(norms)
    if not 0 <= count <= flat.size:
        raise ValueError(f"weakest: count is {count}, expected 0 to {flat.size}, the number of heads")
    places = np.argsort(flat, axis=None, kind="stable")[:count]
    return [(int(place) // flat.shape[1], int(place) % flat.shape[1]) for place in places]


def with_all_heads(transformer: Transformer, model: ModelConfig, params: Params) -> Params:
    """The parameters with queries and keys of heads that are gone, as zeros: their maps are zero."""
    h, k, e = model.n_heads, model.kv_heads, model.head_width
    shapes: dict[str, tuple[int, ...]] = {"query": (model.d_model, h, e), "key": (model.d_model, k, e)}
    if model.bias:
        shapes |= {"query_bias": (h, e), "key_bias": (k, e)}

    def whole(index: int, block: Params) -> Params:
        kept = transformer.blocks[index].attention.head_output.kept_heads
        if kept is None:
            return block
        own = {"head_output": {}} | block.get("attention", {})  # without heads and biases there is nothing
        for name, shape in shapes.items():
            heads = np.array(kept[0] if name.startswith("query") else kept[1], int)
            zeros = jnp.zeros(shape, block["attention_norm"]["gain"].dtype)
            own[name] = zeros.at[..., heads, :].set(own[name]) if heads.size else zeros
        return block | {"attention": own}

    return params | {"blocks": {index: whole(index, block) for index, block in params["blocks"].items()}}


def operate(
    params: Params,
    heads: Heads,
    dropped: Collection[Place] = (),
    rank: int | None = None,
    *,
    in_order: bool = False,
) -> Params:
    """The parameters of `dense_config`'s model: without the heads at these places, the other maps cut to a rank.

    `in_order` cuts them to their first directions, A's columns and B's rows, as a model with nested ranks was trained.

    A rank at or above that of a map's factors leaves the map as it is, as None does. All other parameters are `params`'
    own arrays.

    Raises:
        ValueError: there is no such head, or the rank is not from 1 to d.
    """
    layers, h, d, _ = heads.maps.a.shape
    if rank is not None and not 1 <= rank <= d:
        raise ValueError(f"operate: rank is {rank}, expected 1 to {d}, the model's width")
    keep_lh = np.ones((layers, h), bool)
    for layer, head in dropped:
        if not (0 <= layer < layers and 0 <= head < h):
            expected = f"expected layer 0 to {layers - 1} and head 0 to {h - 1}"
            raise ValueError(f"operate: no head at {(layer, head)}, {expected}")
        keep_lh[layer, head] = False
    maps = jnp.where(keep_lh[..., None, None], _cut(heads, rank, in_order), 0)
    biases = heads.output_biases + jnp.sum(jnp.where(keep_lh[..., None], heads.written_biases, 0), axis=1)

    def changed(layer: int, block: Params) -> Params:
        output = {"map": maps[layer]}
        if "output_bias" in block["attention"]["head_output"]:
            output |= {"output_bias": biases[layer], "value_bias": jnp.zeros((1, d), biases.dtype)}
        return block | {"attention": block["attention"] | {"head_output": output}}

    return params | {"blocks": {layer: changed(layer, block) for layer, block in params["blocks"].items()}}


def _cut(heads: Heads, rank: int | None, in_order: bool) -> Float[Array, "l h d d"]:
    if rank is None or rank >= heads.maps.rank:
        return heads.maps.dense()
    if in_order:
        return matmul(heads.maps.a[..., :rank], heads.maps.b[..., :rank, :])
    vt = heads.directions[..., :rank, :]
    return matmul(matmul(heads.maps.a, matmul(heads.maps.b, transpose(vt))), vt)

"""The cross-entropy of a model whose heads, hidden units and vocabulary are divided over devices, in two ways."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, PRNGKeyArray

from wmresearch.config.model import ModelConfig
from wmresearch.head_output.devices import Devices
from wmresearch.head_output.dynamic_rank import DynamicRank
from wmresearch.head_output.weights import PADDING, Params
from wmresearch.model.transformer import Nats, Transformer, make_nats
from wmresearch.parallel.arrangement import Arrangement
from wmresearch.parallel.devices import ManualDevices, ShardedDevices
from wmresearch.parallel.placement import Placement


def make_divided_nats(
    model: ModelConfig,
    arrangement: Arrangement,
    implementation: Literal["shard_map", "jit"],
    shard_positions: bool,
) -> Nats:
    """The model's cross-entropy as a function of arranged parameters and of batches divided over the data axis."""
    mesh, transformer, placement = arrangement.mesh, arrangement.transformer, arrangement.placement
    vocabulary = transformer.embedding.shape[0]
    if implementation == "jit":
        sharded = ShardedDevices(mesh, vocabulary, shard_positions)
        return make_nats(spread(transformer, placement, sharded, at_once=placement.devices), model.dtype)
    manual = ManualDevices(placement.devices, vocabulary, shard_positions)
    return _in_shard_map(make_nats(spread(transformer, placement, manual, at_once=1), model.dtype), arrangement)


def _in_shard_map(nats: Nats, arrangement: Arrangement) -> Nats:
    rows = P("data")

    def divided(
        params: Params,
        tokens_bt: Int[Array, "b t"],
        targets_bt: Int[Array, "b t"],
        key: PRNGKeyArray | None = None,
        rows_b: Int[Array, " b"] | None = None,
    ) -> Float[Array, "b t"]:
        rows_b = jnp.arange(tokens_bt.shape[0]) if rows_b is None else rows_b

        def of_device(params: Params, tokens: Array, targets: Array, key: PRNGKeyArray | None, rows: Array) -> Array:
            # Once, on entry: the gradient of each is then added over the data axis once, however often it is used.
            params = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, "data", to="varying"), params)
            return nats(params, tokens, targets, key, rows)

        return jax.shard_map(
            of_device,
            mesh=arrangement.mesh,
            in_specs=(arrangement.specs(params), rows, rows, P(), rows),
            out_specs=rows,
        )(params, tokens_bt, targets_bt, key, rows_b)

    return divided


def spread(transformer: Transformer, placement: Placement, devices: Devices, at_once: int) -> Transformer:
    """The model as it computes with arranged parameters: those of `at_once` devices of the head axis."""
    module: Transformer = nnx.merge(*nnx.split(transformer))
    whole = at_once == placement.devices
    shards = placement.shards if whole else (1, 1)
    module.devices = devices
    for block, places in zip(module.blocks, placement.layers, strict=True):
        attention = block.attention
        numbers = tuple(PADDING if place == PADDING else attention.numbers[place] for place in places.heads)
        attention.spread(devices, numbers, len(numbers) * at_once // placement.devices, shards)
        if isinstance(attention.head_output, DynamicRank):
            assert places.layout is not None
            attention.head_output.spread_directions(places.layout, shards)
        block.mlp.devices = devices
    return module

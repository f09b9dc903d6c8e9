"""How the layers and the loss are carried out: all at once, or with less memory, or with less to compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from wmresearch.config.training import ExecutionConfig
from wmresearch.model.layers import fold

Layer: TypeAlias = Callable[[Array, PRNGKeyArray | None], Array]
"""(residual stream, dropout key or None) → residual stream."""

_KEPT = {"products": jax.checkpoint_policies.dots_with_no_batch_dims_saveable, "layers": None}
"""What the backward pass still finds of a layer's forward pass."""


def through_layers(
    layers: Sequence[nnx.Module], x_btd: Float[Array, "b t d"], key: PRNGKeyArray | None, execution: ExecutionConfig
) -> Float[Array, "b t d"]:
    """One layer after another; layer i has the key folded with 1 + i.

    With `scan_layers` neighbours of equal shapes are one layer in a `lax.scan` over their stacked parameters.
    """
    if not execution.scan_layers:
        for index, layer in enumerate(layers):
            x_btd = _rematerialized(layer, execution)(x_btd, fold(key, 1 + index))
        return x_btd
    done = 0
    for (graph, _), equal in groupby(map(nnx.split, layers), key=_shapes):
        states = [state for _, state in equal]
        places = 1 + done + jnp.arange(len(states))
        done += len(states)
        keys = None if key is None else jax.vmap(lambda place: jax.random.fold_in(key, place))(places)

        def one(x: Array, own: tuple[Any, Any], graph: Any = graph) -> tuple[Array, None]:
            state, layer_key = own
            return _rematerialized(nnx.merge(graph, state), execution)(x, layer_key), None

        x_btd, _ = jax.lax.scan(one, x_btd, (jax.tree.map(lambda *leaves: jnp.stack(leaves), *states), keys))
    return x_btd


def _shapes(split: tuple[Any, Any]) -> tuple[Any, Any]:
    graph, state = split
    return graph, jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), nnx.to_pure_dict(state))


def _rematerialized(layer: Any, execution: ExecutionConfig) -> Layer:
    if execution.remat == "none":
        return layer
    return jax.checkpoint(lambda x, key: layer(x, key), policy=_KEPT[execution.remat])


def cross_entropy(
    logits: Callable[[Float[Array, "b t d"]], Float[Array, "b t v"]],
    x_btd: Float[Array, "b t d"],
    targets_bt: Int[Array, "b t"],
    block: int | None,
) -> Float[Array, "b t"]:
    """−log softmax(logits(x))[target] in nats, with the logits of `block` tokens at a time, in both directions."""
    n = targets_bt.size
    if block is None or block >= n:
        return optax.softmax_cross_entropy_with_integer_labels(logits(x_btd), targets_bt)
    blocks = -(-n // block)
    more = blocks * block - n
    x_nd = jnp.pad(x_btd.reshape(n, -1), ((0, more), (0, 0))).reshape(blocks, 1, block, -1)
    targets_n = jnp.pad(targets_bt.reshape(n), (0, more)).reshape(blocks, 1, block)

    @jax.checkpoint
    def of_block(part: tuple[Array, Array]) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(logits(part[0]), part[1])

    return jax.lax.map(of_block, (x_nd, targets_n)).reshape(-1)[:n].reshape(targets_bt.shape)

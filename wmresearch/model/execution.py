"""How the layers and the loss are carried out: all at once, or with less memory, or with less to compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from wmresearch.config.training import ExecutionConfig
from wmresearch.head_output.turns import in_turns
from wmresearch.model.layers import Chance, fold

Layer: TypeAlias = Callable[[Array, Chance | None], Array]
"""(residual stream, chance of dropout or None) → residual stream."""

_KEPT = {"products": jax.checkpoint_policies.dots_with_no_batch_dims_saveable, "layers": None}
"""What the backward pass still finds of a layer's forward pass."""


def through_layers(
    layers: Sequence[nnx.Module], x_btd: Float[Array, "b t d"], chance: Chance | None, execution: ExecutionConfig
) -> Float[Array, "b t d"]:
    """One layer after another; layer i has the chance folded with 1 + i.

    With `scan_layers` neighbours of equal shapes are one layer in a `lax.scan` over their stacked parameters.
    """
    if not execution.scan_layers:
        for index, layer in enumerate(layers):
            x_btd = _rematerialized(layer, execution)(x_btd, fold(chance, 1 + index))
        return x_btd
    done = 0
    for (graph, _), equal in groupby(map(nnx.split, layers), key=_shapes):
        states = [state for _, state in equal]
        places = 1 + done + jnp.arange(len(states))
        done += len(states)

        def one(x: Array, own: tuple[Any, Array], graph: Any = graph) -> tuple[Array, None]:
            state, place = own
            return _rematerialized(nnx.merge(graph, state), execution)(x, fold(chance, place)), None

        x_btd, _ = jax.lax.scan(one, x_btd, (jax.tree.map(lambda *leaves: jnp.stack(leaves), *states), places))
    return x_btd


def _shapes(split: tuple[Any, Any]) -> tuple[Any, Any]:
    graph, state = split
    return graph, jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), nnx.to_pure_dict(state))


def _rematerialized(layer: Any, execution: ExecutionConfig) -> Layer:
    if execution.remat == "none":
        return layer
    return jax.checkpoint(lambda x, chance: layer(x, chance), policy=_KEPT[execution.remat])


def by_blocks(
    nats: Callable[[Float[Array, "b t d"], Int[Array, "b t"]], Float[Array, "b t"]],
    x_btd: Float[Array, "b t d"],
    targets_bt: Int[Array, "b t"],
    block: int | None,
) -> Float[Array, "b t"]:
    """nats(x, targets), with the logits of `block` tokens at a time, in both directions."""
    n = targets_bt.size
    if block is None or block >= n:
        return nats(x_btd, targets_bt)
    of_block = lambda x_nd, targets_n: nats(x_nd[None], targets_n[None])[0]
    return in_turns(of_block, block, x_btd.reshape(n, -1), targets_bt.reshape(n)).reshape(targets_bt.shape)

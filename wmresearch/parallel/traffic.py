"""What the devices of a mesh exchange in a training step, predicted from shapes: the `shard_map` implementation.

A layer enters once and takes one total (`parallel.devices`): of n tokens on a device and a residual stream of width d,

    embedding   total             logits   enter, and 3 numbers a token
    attention   enter, total      MLP      enter, total

    enter   forward nothing, backward an all-reduce of n · d; with divided positions all-gather n · d, reduce-scatter
            n · d / devices
    total   forward an all-reduce of n · d, backward nothing; with divided positions reduce-scatter n · d / devices,
            all-gather n · d

Numbers are those that one device receives, as in `parallel.collectives`. Single numbers (the mean loss, the gradient's
norm) and what penalties and Muon's matrices need are not in it: XLA finds these from how arrays are divided.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import jax.numpy as jnp
from flax import nnx

from wmresearch.config import RunConfig
from wmresearch.model.attention import Attention
from wmresearch.model.cost import bytes_of
from wmresearch.parallel.arrangement import Arrangement
from wmresearch.parallel.mesh import HEADS
from wmresearch.parallel.placement import LayerPlaces
from wmresearch.parallel.shares import Path, held_params, of_layer, trained_paths

Kind: TypeAlias = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all"]
When: TypeAlias = Literal["forward", "backward", "forward again", "gradient", "update"]


_UNREAD = "attention_norm"
"""What only heads read, so that in a layer without any it has no gradient."""


@dataclass(frozen=True)
class Exchange:
    """One kind of collective of a training step."""

    what: str
    when: When
    kind: Kind
    axis: Literal["data", "head"]
    """Of the config's mesh."""
    devices: int
    """That take part together."""
    numbers: int
    """That a device receives each time."""
    times: int
    """In a step."""
    dtype: str
    tokens: int | None = None
    """Of which it exchanges numbers each time; None: of parameters."""

    @property
    def numbers_per_token(self) -> float | None:
        """Each time; in one layer, where layers make it."""
        return None if self.tokens is None else self.numbers / self.tokens

    @property
    def bytes_per_token(self) -> float | None:
        return None if self.tokens is None else self.numbers * bytes_of(self.dtype) / self.tokens

    @property
    def numbers_per_step(self) -> int:
        return self.numbers * self.times

    @property
    def bytes_per_step(self) -> int:
        return self.numbers_per_step * bytes_of(self.dtype)


def exchanges(config: RunConfig, arrangement: Arrangement) -> tuple[Exchange, ...]:
    """All of a step, in its order; those of a kind in several layers as one that happens several times."""
    found = [*_activations(config, arrangement), *_gradients(config, arrangement), *_updates(config, arrangement)]
    return tuple(each for each in found if each.devices > 1 and each.numbers and each.times)


class _Said(NamedTuple):
    """A collective, and what a device receives of it."""

    kind: Kind
    numbers: int


@dataclass(frozen=True)
class _Pair:
    """What the devices of the head axis say to each other at one place of the model, in both passes."""

    forward: _Said | None
    backward: _Said | None


def _activations(config: RunConfig, arrangement: Arrangement) -> Iterator[Exchange]:
    model, execution, positions = config.model, config.execution, config.parallel.shard_positions
    devices, parts = arrangement.placement.devices, execution.accumulate
    n = config.data.batch_size // parts // arrangement.mesh.shape["data"] * model.context
    whole, part = n * model.d_model, n * model.d_model // devices
    enter, total = _Pair(None, _Said("all-reduce", whole)), _Pair(_Said("all-reduce", whole), None)
    if positions:
        gathered, scattered = _Said("all-gather", whole), _Said("reduce-scatter", part)
        enter, total = _Pair(gathered, scattered), _Pair(scattered, gathered)

    def attention(layer: Attention, places: LayerPlaces) -> tuple[_Pair, ...]:
        if not places.heads:
            return ()
        if not layer.head_output.side_by_side:
            return enter, total
        numbers = n * len(places.heads) * layer.head_output.path_cost().width
        exchanged = _Said("all-to-all", numbers // devices)
        return enter, _Pair(exchanged, exchanged) if positions else _Pair(_Said("all-gather", numbers), None)

    blocks, layers = arrangement.transformer.blocks, arrangement.placement.layers
    attentions = [attention(block.attention, places) for block, places in zip(blocks, layers, strict=True)]
    # (what, pairs, layers, those of the pairs whose forward pass is taken again where activations are not kept)
    made: list[tuple[str, tuple[_Pair, ...], int, int]] = [("embedding", (total,), 1, 0)]
    made += [("attention", pairs, count, len(pairs)) for pairs, count in Counter(attentions).items()]
    made += [("MLP", (enter, total), len(blocks), 1), ("logits", (enter,), 1, 0)]

    def say(what: str, when: When, said: _Said | None, layers: int) -> Iterator[Exchange]:
        if said is not None:
            yield Exchange(what, when, said.kind, "head", devices, said.numbers, layers * parts, model.dtype, n)

    for what, pairs, count, _ in made:
        for pair in pairs:
            yield from say(what, "forward", pair.forward, count)
    yield from _nats(config, devices, n)
    for what, pairs, count, again in reversed(made):
        for pair in pairs[:again] if execution.remat != "none" else ():
            yield from say(what, "forward again", pair.forward, count)
        for pair in reversed(pairs):
            yield from say(what, "backward", pair.backward, count)


def _nats(config: RunConfig, devices: int, n: int) -> Iterator[Exchange]:
    """Of each token the largest logit, the sum of exp and the target's logit; by blocks the first two once more."""
    block = config.execution.logits_block
    blocks, width = (1, n) if block is None or block >= n else (-(-n // block), block)
    times, wide = blocks * config.execution.accumulate, str(jnp.promote_types(config.model.dtype, jnp.float32))
    passes: tuple[tuple[When, int], ...] = (("forward", 3),) + (("forward again", 2),) * (blocks > 1)
    for when, numbers in passes:
        yield Exchange("cross-entropy", when, "all-reduce", "head", devices, numbers * width, times, wide, width)


def _gradients(config: RunConfig, arrangement: Arrangement) -> Iterator[Exchange]:
    """Of parameters that devices have in common: those of the head axis some, those of the data axis all of theirs."""
    parts, mesh, model = config.execution.accumulate, arrangement.mesh, config.model
    in_common: Counter[tuple[str, int]] = Counter()
    for what, axes, numbers in _in_common(config, arrangement):
        in_common[what, math.prod(mesh.shape[axis] for axis in axes)] += numbers
    for (what, devices), numbers in in_common.items():
        yield Exchange(what, "gradient", "all-reduce", "head", devices, numbers, parts, model.dtype)
    own = held_params(arrangement)
    numbers = sum(own[path].size for path in _followed(arrangement))
    devices = mesh.shape["data"]
    yield Exchange("parameters", "gradient", "all-reduce", "data", devices, numbers, parts, model.param_dtype)


def _followed(arrangement: Arrangement) -> set[Path]:
    """The paths of the parameters that have a gradient: no head reads what the norm before none gives."""
    layers = arrangement.placement.layers
    unread = {("blocks", layer, _UNREAD) for layer, places in enumerate(layers) if not places.heads}
    return {path for path in trained_paths(arrangement.transformer) if path[:3] not in unread}


def _in_common(config: RunConfig, arrangement: Arrangement) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """(what, mesh axes, numbers) of each parameter and layer that uses it.

    The gradient of a parameter that no axis divides is added over devices where what it is used with differs between
    them: within attention, and with divided positions everywhere.
    """
    own, blocks = held_params(arrangement), arrangement.transformer.blocks
    positions, (_, copies) = config.parallel.shard_positions, arrangement.placement.shards
    if positions:
        around = sum(array.size for path, array in own.items() if path[0] in ("positions", "final_norm"))
        yield "norms, biases, positions", HEADS, around
    for layer, (block, places) in enumerate(zip(blocks, arrangement.placement.layers, strict=True)):
        here = ("blocks", layer)
        for path, param in nnx.to_flat_state(nnx.state(block, nnx.Param)):
            array = of_layer(own, (*here, *path))
            missing = tuple(axis for axis in HEADS if axis not in array.axes)
            if not param.trainable or not missing or "gates" in path or (not places.heads and path[0] == _UNREAD):
                continue
            numbers = array.size
            if path[0] != "attention" or path[-1] == "output_bias":  # met by what all devices have alike
                if positions:
                    yield "norms, biases, positions", HEADS, numbers
                continue
            if path[-1] == "value_bias" and block.attention.head_output.order == "mix_first":
                numbers = len(places.heads) // arrangement.placement.devices * array.shape[-1]  # repeated before it
            yield "all heads' own" if param.along is None else "shared key/value heads", missing, numbers
        if copies > 1 and any("gates" in path for path in trained_paths(block)):  # each row of B has its gate
            rows = of_layer(own, (*here, "attention", "head_output", "factor_b")).shape[0]
            yield "shared key/value heads", ("copy",), rows


def _updates(config: RunConfig, arrangement: Arrangement) -> Iterator[Exchange]:
    """Where moments are divided over the data axis, each device updates its part and all parts are gathered."""
    own, moments = held_params(arrangement), held_params(arrangement, as_moments=True)
    divided = [path for path in trained_paths(arrangement.transformer) if "data" in moments[path].axes]
    numbers, devices = sum(own[path].size for path in divided), arrangement.mesh.shape["data"]
    yield Exchange("parameters", "update", "all-gather", "data", devices, numbers, 1, config.model.param_dtype)

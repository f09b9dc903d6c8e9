"""What one device of a mesh has of a model, from shapes: nothing is allocated, and no device is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
from flax import nnx
from jax.sharding import AbstractMesh

from wmresearch.config.model import ModelConfig
from wmresearch.head_output.dynamic_rank import DynamicRank
from wmresearch.head_output.weights import PADDING, about, declared, place_of
from wmresearch.model.cost import bytes_of
from wmresearch.model.transformer import Transformer
from wmresearch.parallel.arrangement import Arrangement
from wmresearch.parallel.mesh import AXES, Sizes
from wmresearch.parallel.placement import LayerPlaces, make_placement

Path: TypeAlias = tuple[Any, ...]


def planned(model: ModelConfig, transformer: Transformer, sizes: Sizes, shard_optimizer: bool = False) -> Arrangement:
    """How a model lies on a mesh of so many devices, whether they are here or not."""
    placement = make_placement(model, transformer, sizes.head)
    # Shapes and shardings need no more of a mesh than its axes.
    mesh: Any = AbstractMesh((sizes.data, *placement.shards), AXES)
    return Arrangement(transformer, placement, mesh, shard_optimizer)


@dataclass(frozen=True)
class Held:
    """An array as one device has it."""

    shape: tuple[int, ...]
    dtype: Any
    axes: frozenset[str]
    """The mesh axes that divide it."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * self.dtype.itemsize


def held(arrangement: Arrangement, tree: Any) -> Any:
    """What one device has of each array of a tree that is not arranged yet; only shapes and types are read."""
    arranged = jax.eval_shape(arrangement.arrange, tree)

    def on_device(leaf: Any, spec: Any) -> Held:
        axes = [(axes,) if isinstance(axes, str) else tuple(axes or ()) for axes in spec]
        counts = [math.prod(arrangement.mesh.shape[name] for name in names) for names in axes]
        counts += [1] * (len(leaf.shape) - len(counts))
        shape = tuple(size // count for size, count in zip(leaf.shape, counts, strict=True))
        return Held(shape, leaf.dtype, frozenset(name for names in axes for name in names))

    return jax.tree.map(on_device, arranged, arrangement.specs(arranged))


class _Moments(NamedTuple):
    """A state of which there are only moments, which an arrangement knows by this name."""

    optimizer: Any


def abstract_params(transformer: Transformer) -> Any:
    """The parameters' shapes and types, whole."""
    return about(transformer, lambda _, param: param.get_raw_value())


def held_params(arrangement: Arrangement, as_moments: bool = False) -> dict[Path, Held]:
    """Path → what one device has of each parameter; or of a moment of it, which may be divided further."""
    params = abstract_params(arrangement.transformer)
    tree = held(arrangement, _Moments(params)).optimizer if as_moments else held(arrangement, params)
    return {tuple(key.key for key in path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def trained_paths(module: nnx.Module) -> set[Path]:
    """The paths of the parameters that are trained."""
    return {place_of(path) for path in declared(module)}


def of_layer(own: dict[Path, Held], path: Path) -> Held:
    """A layer's parameter; one that layers share stands in the first."""
    return own[path] if path in own else own[path[0], 0, *path[2:]]


@dataclass(frozen=True)
class Part:
    """Of things that the devices of the head axis divide, how many one device has places for."""

    name: str
    all: int
    on_device: int
    empty: int
    """Places with nothing in them, over all devices."""
    copies: int
    """Devices that have the same ones."""


@dataclass(frozen=True)
class PartOfWeight:
    """A parameter of the head output in one layer, on one device."""

    name: str
    symbol: str
    shape: tuple[int, ...]
    whole_shape: tuple[int, ...]


@dataclass(frozen=True)
class DeviceShare:
    """What one device of a mesh has."""

    parts: tuple[Part, ...]
    """Heads are those of the layer with the most."""
    imbalance: float
    """Work of all devices' heads, empty places too, over that of the heads on one device: 1 where all have as much and
    no place is empty. Counted in query heads, of `dynamic_rank` in rows of B."""
    weights: tuple[PartOfWeight, ...]
    """Of the same layer."""
    parameters: int
    parameter_bytes: int
    """With masks and places, which are not counted as parameters."""
    cache_bytes_per_token: int
    """Of keys and values that generation keeps of each past token, in the type of the computation."""


def device_share(model: ModelConfig, arrangement: Arrangement) -> DeviceShare:
    """What one device has; every device has as many places."""
    transformer, placement = arrangement.transformer, arrangement.placement
    layers, (apart, copies) = placement.layers, placement.shards
    most = max(range(len(layers)), key=lambda layer: len(layers[layer].heads))
    own, counted = held_params(arrangement), trained_paths(transformer)
    parts = (
        _part("query heads", layers[most].heads, placement.devices, 1),
        _part("key/value heads", layers[most].key_heads, apart, copies),
        _part("hidden units", placement.hidden, placement.devices, 1),
        _part("symbols", placement.vocabulary, placement.devices, 1),
    )
    cache = sum(_cache(transformer, layer, places, placement.shards) for layer, places in enumerate(layers))
    work = [places.rows or places.heads for places in layers]
    filled = sum(len(row) - row.count(PADDING) for row in work)
    return DeviceShare(
        parts,
        sum(map(len, work)) / filled,
        _weights(transformer, most, own),
        sum(array.size for path, array in own.items() if path in counted),
        sum(array.bytes for array in own.values()),
        cache * bytes_of(model.dtype),
    )


def _part(name: str, order: tuple[int, ...], devices: int, copies: int) -> Part:
    empty = order.count(PADDING)
    return Part(name, len(order) - empty, len(order) // devices, empty, copies)


def _weights(transformer: Transformer, layer: int, own: dict[Path, Held]) -> tuple[PartOfWeight, ...]:
    output = transformer.blocks[layer].attention.head_output
    place = ("blocks", layer, "attention", "head_output")
    found = []
    for name, param in declared(output).items():
        here = of_layer(own, (*place, *place_of(name)))
        found.append(PartOfWeight(name, output.symbol(name), here.shape, param.get_raw_value().shape))
    return tuple(found)


def _cache(transformer: Transformer, layer: int, places: LayerPlaces, shards: tuple[int, int]) -> int:
    """Numbers that a device keeps of a token in one layer."""
    attention, (apart, copies) = transformer.blocks[layer].attention, shards
    output = attention.head_output
    key_heads, width = attention.key_shape()
    if not key_heads:
        return 0
    keys, queries = len(places.key_heads) // apart, len(places.heads) // (apart * copies)
    if isinstance(output, DynamicRank):
        assert places.layout is not None
        return keys * width + places.layout.width
    here = {len(attention.numbers): queries, key_heads: keys}
    return keys * width + sum(here.get(heads, heads) * wide for heads, wide in output.cache_shapes())

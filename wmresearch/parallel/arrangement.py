"""Brings a run's state to where its heads live, and back to the order in which all other code knows it.

Everything shaped like a parameter stands at the parameter's path: moments, cached gradients. So one rule by path says
of every array of a state how it is arranged and divided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from wmresearch.head_output.weights import PADDING, place_of
from wmresearch.model.transformer import Transformer
from wmresearch.parallel.mesh import HEADS
from wmresearch.parallel.placement import Placement

Tree = TypeVar("Tree")
Path = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class _Divided:
    """A parameter that the devices of the head axis divide."""

    axis: int
    over: str | tuple[str, ...]
    """The mesh axes."""
    order: np.ndarray
    """What lies at each place."""
    count: int
    """How much there is without empty places."""

    @cached_property
    def places(self) -> np.ndarray:
        """Where everything lies."""
        held = np.flatnonzero(self.order != PADDING)
        return held[np.argsort(self.order[held])]

    @property
    def moves(self) -> bool:
        return not np.array_equal(self.order, np.arange(self.count))


@dataclass(frozen=True, eq=False)
class Arrangement:
    """How a model's state lies on a mesh."""

    transformer: Transformer
    placement: Placement
    mesh: Mesh
    shard_optimizer: bool = False

    @cached_property
    def _divided(self) -> dict[Path, _Divided]:
        out: dict[Path, _Divided] = {}
        for path, param in nnx.to_flat_state(nnx.state(self.transformer, nnx.Param)):
            along = param.along
            if along is not None:
                layer = int(str(path[1])) if path[0] == "blocks" else None
                order = np.array(self.placement.order(along.of, layer), np.int64)
                over = "head" if along.of in ("key_heads", "directions") else HEADS
                out[path] = _Divided(along.axis, over, order, int((order != PADDING).sum()))
        return out

    @property
    def moves(self) -> bool:
        """Whether the state lies in another order, or with empty places."""
        return any(divided.moves for divided in self._divided.values())

    def arrange(self, tree: Tree) -> Tree:
        """Arrays at the places of their devices, zero at empty ones."""
        return self._each(tree, lambda leaf, of: _taken(leaf, of.axis, of.count, of.order))

    def restore(self, tree: Tree) -> Tree:
        """What was arranged, as it was before."""
        return self._each(tree, lambda leaf, of: _taken(leaf, of.axis, len(of.order), of.places))

    @property
    def everywhere(self) -> NamedSharding:
        """Of what every device has."""
        return NamedSharding(self.mesh, PartitionSpec())

    def put(self, tree: Tree) -> Tree:
        """A tree of the host's, equal on all processes, arranged and divided over the devices."""
        arranged = self.arrange(jax.tree.map(np.asarray, tree))
        return jax.tree.map(_on_devices, arranged, self.shardings(arranged))

    def restored(self, tree: Tree) -> Tree:
        """What was put, on the devices: as it is where nothing was moved, and what was moved on every device."""
        if not self.moves:
            return tree
        path_moves = lambda path: (of := self._of(path)) is not None and of.moves
        moved = jax.tree_util.tree_map_with_path(lambda path, leaf: leaf if path_moves(path) else None, tree)
        found = self._restored_everywhere(moved)
        return jax.tree.map(lambda leaf, new: leaf if new is None else new, tree, found)

    def gathered(self, tree: Tree) -> Tree:
        """What was put, on the host."""
        return jax.tree.map(np.asarray, self._restored_everywhere(tree))

    @cached_property
    def _restored_everywhere(self) -> Callable[[Any], Any]:
        """`restore` with its results on every device, compiled once for each structure."""
        return jax.jit(self.restore, out_shardings=self.everywhere)

    def whole(self, tree: Tree) -> Tree:
        """Arrays of the host's (also random keys), equal on all processes, on every device."""
        return jax.tree.map(lambda leaf: _on_devices(leaf, self.everywhere), tree)

    def batches(self, count: int, rows: int, width: int, read: Callable[[slice], np.ndarray]) -> Array:
        """Batches `[count, rows, width]` divided over the data axis; each process reads the rows of its own devices."""
        own = NamedSharding(self.mesh, PartitionSpec(None, "data"))
        parts: dict[tuple[int, int], np.ndarray] = {}

        def part(index: Any) -> np.ndarray:
            start, stop, _ = index[1].indices(rows)
            if (start, stop) not in parts:
                parts[start, stop] = read(slice(start, stop))
            return parts[start, stop]

        return jax.make_array_from_callback((count, rows, width), own, part)

    def _each(self, tree: Tree, change: Callable[[Array, _Divided], Array]) -> Tree:
        def changed(path: Path, leaf: Array) -> Array:
            of = self._of(path)
            return change(leaf, of) if of is not None and of.moves else leaf

        return jax.tree_util.tree_map_with_path(changed, tree)

    def _of(self, path: Path) -> _Divided | None:
        keys = tuple(key.key for key in path if isinstance(key, jax.tree_util.DictKey))
        return next((self._divided[keys[i:]] for i in range(len(keys)) if keys[i:] in self._divided), None)

    def shape(self, path: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """What becomes of the shape of a parameter, or of one that it is seen in, with the same axis of heads."""
        of = self._divided.get(place_of(path))
        if of is None:
            return shape
        return (*shape[: of.axis], shape[of.axis] // of.count * len(of.order), *shape[of.axis + 1 :])

    def specs(self, tree: Any) -> Any:
        """How each array of an arranged tree is divided; moments over the data axis too where that is asked for."""

        def spec(path: Path, leaf: Any) -> PartitionSpec:
            of = self._of(path)
            axes: list[Any] = [None] * len(leaf.shape)
            if of is not None:
                axes[of.axis] = of.over
            own = any(isinstance(key, jax.tree_util.GetAttrKey) and key.name == "optimizer" for key in path)
            data = self.mesh.shape["data"]
            if self.shard_optimizer and own and data > 1:
                free = [i for i, size in enumerate(leaf.shape) if axes[i] is None and size % data == 0 and size]
                if free:
                    axes[max(free, key=lambda i: leaf.shape[i])] = "data"
            while axes and axes[-1] is None:
                axes.pop()
            return PartitionSpec(*axes)

        return jax.tree_util.tree_map_with_path(spec, tree)

    def shardings(self, tree: Any) -> Any:
        """The same as shardings."""
        return jax.tree.map(
            lambda spec: NamedSharding(self.mesh, spec),
            self.specs(tree),
            is_leaf=lambda x: isinstance(x, PartitionSpec),
        )


def _on_devices(leaf: Any, sharding: NamedSharding) -> Array:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = _on_devices(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def _taken(leaf: Float[Array, ...], axis: int, count: int, order: np.ndarray) -> Float[Array, ...]:
    """Of `count` equal parts of an axis those in an order; zeros for `PADDING`."""
    xp: Any = np if isinstance(leaf, np.ndarray) else jnp
    before, length, after = leaf.shape[:axis], leaf.shape[axis], leaf.shape[axis + 1 :]
    parts = leaf.reshape(*before, count, length // count, *after)
    taken = xp.take(parts, np.maximum(order, 0), axis=axis)
    if PADDING in order:
        held = (order != PADDING).reshape([1] * axis + [-1] + [1] * (taken.ndim - axis - 1))
        taken = xp.where(held, taken, xp.zeros((), leaf.dtype))
    return taken.reshape(*before, len(order) * (length // count), *after)

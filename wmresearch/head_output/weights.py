"""Declares a model's parameters without making them: shape, type, how they start, how an optimizer treats them.

A module built from `weight`s is a description: its parameters are `jax.ShapeDtypeStruct`s and take no memory, so a
70-billion-parameter model can be counted on a laptop. `initialize` makes the arrays, as a plain dict.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, PRNGKeyArray

Tree = TypeVar("Tree")
PADDING = -1
"""In place of a place, where there is nothing."""
Params: TypeAlias = dict[str, Any]
"""Nested dict of arrays, keyed as the module's attributes are named."""


class Initializer(Protocol):
    """How a parameter starts. Frozen and hashable: one program is compiled for each and each shape.

    `own` is the parameter's own key, `common` that of all parameters of its module, for what two of them must agree on.
    """

    def __call__(self, own: PRNGKeyArray, common: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Array: ...


@dataclass(frozen=True)
class Normal:
    """N(0, std²), each entry for itself."""

    std: float

    def __call__(self, own: PRNGKeyArray, common: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Array:
        del common
        return self.std * jax.random.normal(own, shape, dtype)


@dataclass(frozen=True)
class Constant:
    """Every entry the same."""

    value: float

    def __call__(self, own: PRNGKeyArray, common: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Array:
        del own, common
        return jnp.full(shape, self.value, dtype)


@dataclass(frozen=True)
class TakenFrom:
    """Some places along an axis of what another initializer draws for all; zero where a place is `PADDING`.

    So a head or a direction starts the same whichever others are there.
    """

    inner: Initializer
    drawn: tuple[int, ...]
    """The shape that is drawn."""
    seen: tuple[int, ...]
    """The shape that it is seen in."""
    axis: int
    places: tuple[int, ...]

    def __call__(self, own: PRNGKeyArray, common: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Array:
        del shape
        whole = self.inner(own, common, self.drawn, dtype).reshape(self.seen)
        if self.places == tuple(range(self.seen[self.axis])):
            return whole
        places = np.array(self.places, int)
        taken = jnp.take(whole, np.maximum(places, 0), axis=self.axis)
        along = [-1 if axis == self.axis else 1 for axis in range(len(self.seen))]
        return jnp.where(jnp.asarray(places != PADDING).reshape(along), taken, 0)


@dataclass(frozen=True)
class MatrixAxes:
    """Which axes of a parameter a matrix product sums over and which it makes; the others hold matrices side by side.

    An optimizer that treats matrices as such (Muon) takes the heads as one matrix or each head's as its own.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    heads: int | None = None
    """Which of these axes counts the heads."""
    view: tuple[int, ...] | None = None
    """Shape in which the axes are counted, where it is not the parameter's own."""
    of: tuple[int, ...] | None = None
    """Shape that the parameter had before heads or directions left it, where it had another."""


@dataclass(frozen=True)
class Along:
    """The axis of a parameter along which devices can share it, each holding some of what lies there.

    A parameter without such an axis is held by every device.
    """

    axis: int
    of: Literal["heads", "key_heads", "directions", "rows", "hidden", "vocabulary"]
    """Query heads; key/value heads; directions and rows of `dynamic_rank`; hidden units; symbols. The axis can be a
    multiple as long."""


def along_heads(axis: int) -> Along:
    """One or several places for each query head."""
    return Along(axis, "heads")


def along_key_heads(axis: int) -> Along:
    """One or several places for each key/value head."""
    return Along(axis, "key_heads")


def read_axes() -> MatrixAxes:
    """Of `[d, h, r]`: each head reads x through a d × r matrix."""
    return MatrixAxes((0,), (1, 2), heads=1)


def write_axes(view: tuple[int, ...] | None = None) -> MatrixAxes:
    """Of `[h, r, d]`: each head writes through an r × d matrix."""
    return MatrixAxes((0, 1), (2,), heads=0, view=view)


def weight(
    shape: tuple[int, ...],
    init: Initializer,
    dtype: str,
    *,
    decay: bool = True,
    axes: MatrixAxes | Literal["last two"] | None = "last two",
    nonzeros: int | None = None,
    along: Along | None = None,
) -> nnx.Param:
    """A parameter to be.

    `decay` says whether weight decay acts on it (matrices yes; biases and gains no). `axes` are those of the matrices
    in it; what does not decay has none. `nonzeros` is how many entries are not held at zero; unless given, all. `along`
    is how devices can share it.
    """
    if axes == "last two":
        axes = MatrixAxes((len(shape) - 2,), (len(shape) - 1,)) if decay and len(shape) >= 2 else None
    stored = math.prod(shape) if nonzeros is None else nonzeros
    abstract = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
    return nnx.Param(abstract, init=init, decay=decay, axes=axes, nonzeros=stored, trainable=True, along=along)


def bias(shape: tuple[int, ...], dtype: str, along: Along | None = None) -> nnx.Param:
    """A bias, zero at first, without weight decay."""
    return weight(shape, Constant(0.0), dtype, decay=False, along=along)


def buffer(shape: tuple[int, ...], init: Initializer, dtype: str, along: Along | None = None) -> nnx.Param:
    """An array that belongs to the model's state but has no gradient: a mask, the places of blocks. Not counted."""
    abstract = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
    return nnx.Param(abstract, init=init, decay=False, axes=None, nonzeros=0, trainable=False, along=along)


def initialize(module: nnx.Module, key: PRNGKeyArray) -> Params:
    """The parameters of a described module.

    Each is drawn from a key folded with a hash of its own path, so that two models with the same key start with equal
    values in every parameter they share by name and shape, whatever else they hold. One small program is compiled for
    each distinct shape, not one large program for the model.
    """
    # the options of a program within another are refused
    drawn: Callable[..., Array] = _drawn if isinstance(key, jax.core.Tracer) else _compiled_drawn()

    def draw(path: tuple[Any, ...], param: nnx.Variable) -> Array:
        abstract = param.get_raw_value()
        own, common = ("/".join(map(str, part)) for part in (path, path[:-1]))
        names = [np.uint32(zlib.crc32(name.encode())) for name in (own, common)]
        return drawn(key, *names, param.init, abstract.shape, abstract.dtype)

    state = nnx.state(module, nnx.Param)
    return nnx.to_pure_dict(nnx.map_state(lambda path, param: param.replace(draw(path, param)), state))


def _drawn(key: PRNGKeyArray, own: Any, common: Any, init: Initializer, shape: tuple[int, ...], dtype: Any) -> Array:
    return init(jax.random.fold_in(key, own), jax.random.fold_in(key, common), shape, dtype)


@cache
def _compiled_drawn() -> Callable[..., Array]:
    return jax.jit(_drawn, static_argnums=(3, 4, 5), compiler_options=quickly())


def quickly() -> dict[str, bool | int] | None:
    """Options of `jax.jit` for what is called seldom: XLA on CPUs optimizes it less, in a third to two thirds of the
    time. First parameters keep their bits.
    """
    if jax.default_backend() != "cpu":
        return None
    return {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}


def abstract_params(module: nnx.Module) -> Params:
    """Shape and type of each parameter, as `jax.eval_shape` of `initialize` would have them; nothing is traced."""
    return about(module, lambda _, param: param.get_raw_value())


def about(module: nnx.Module, of: Callable[[str, nnx.Variable], Any]) -> Params:
    """What a function of path and declaration says of each parameter; same structure as the parameters."""
    state = nnx.state(module, nnx.Param)
    return nnx.to_pure_dict(nnx.map_state(lambda path, p: p.replace(of("/".join(map(str, path)), p)), state))


def cast_floats(tree: Tree, of: Callable[[Any], Any]) -> Tree:
    """The tree with its floating-point arrays in the type that a function of the present one gives."""
    floating = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating)
    return jax.tree.map(lambda leaf: leaf.astype(of(leaf.dtype)) if floating(leaf) else leaf, tree)


def value_or_none(param: nnx.Param | None) -> Array | None:
    """The array of a parameter that a module may not have."""
    return None if param is None else param[...]


def declared(module: nnx.Module) -> dict[str, nnx.Variable]:
    """Path → declaration of every parameter that is trained."""
    flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return {"/".join(map(str, path)): param for path, param in flat if param.trainable}


def place_of(path: str) -> tuple[Any, ...]:
    """The keys by which a parameter is found in nested dicts, of its path as `declared` and `about` write it."""
    return tuple(int(name) if name.isdigit() else name for name in path.split("/"))


def count(module: nnx.Module) -> int:
    """Number of parameters."""
    return sum(param.get_raw_value().size for param in declared(module).values())


def count_nonzeros(module: nnx.Module) -> int:
    """Number of parameters that are not held at zero."""
    return sum(param.nonzeros for param in declared(module).values())


def split(params: Params, chosen: Params) -> tuple[Params, Params]:
    """The leaves that are chosen (True in a tree of the same structure), and the others.

    Branches without any are left out.
    """
    sides: tuple[Params, Params] = ({}, {})
    for key, value in params.items():
        if isinstance(value, dict):
            for side, part in zip(sides, split(value, chosen[key]), strict=True):
                if part:
                    side[key] = part
        else:
            sides[not chosen[key]][key] = value
    return sides


def join(one: Params, other: Params, both: Callable[[Any, Any], Any] = lambda _, new: new) -> Params:
    """What was split, or some leaves put into the others; `both` makes one leaf of two at the same place."""
    out = dict(one)
    for key, value in other.items():
        if key not in out:
            out[key] = value
        else:
            out[key] = join(out[key], value, both) if isinstance(value, dict) else both(out[key], value)
    return out

"""Declares a model's parameters without making them: shape, type, how they start, whether weight decay acts.

A module built from `weight`s is a description: its parameters are `jax.ShapeDtypeStruct`s and take no memory, so a
70-billion-parameter model can be counted on a laptop. `initialize` makes the arrays, as a plain dict.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, PRNGKeyArray

Params: TypeAlias = dict[str, Any]
"""Nested dict of arrays, keyed as the module's attributes are named."""


@dataclass(frozen=True)
class Normal:
    """N(0, std²), each entry for itself."""

    std: float

    def __call__(self, key: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Array:
        return self.std * jax.random.normal(key, shape, dtype)


@dataclass(frozen=True)
class Constant:
    """Every entry the same."""

    value: float

    def __call__(self, key: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Array:
        del key
        return jnp.full(shape, self.value, dtype)


Initializer: TypeAlias = Normal | Constant


def weight(shape: tuple[int, ...], init: Initializer, dtype: str, *, decay: bool = True) -> nnx.Param:
    """A parameter to be: `decay` says whether weight decay acts on it (matrices yes; biases and gains no)."""
    return nnx.Param(jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)), init=init, decay=decay)


def bias(shape: tuple[int, ...], dtype: str) -> nnx.Param:
    """A bias, zero at first, without weight decay."""
    return weight(shape, Constant(0.0), dtype, decay=False)


def initialize(module: nnx.Module, key: PRNGKeyArray) -> Params:
    """The parameters of a described module.

    Each is drawn from a key folded with a hash of its own path, so that two models with the same key start with equal
    values in every parameter they share by name and shape, whatever else they hold. One small program is compiled for
    each distinct shape, not one large program for the model.
    """

    def draw(path: tuple[Any, ...], param: nnx.Variable) -> Array:
        abstract = param.get_raw_value()
        name = np.uint32(zlib.crc32("/".join(map(str, path)).encode()))
        return _draw(key, name, param.init, abstract.shape, abstract.dtype)

    state = nnx.state(module, nnx.Param)
    return nnx.to_pure_dict(nnx.map_state(lambda path, param: param.replace(draw(path, param)), state))


@partial(jax.jit, static_argnums=(2, 3, 4))
def _draw(key: PRNGKeyArray, name: Any, init: Initializer, shape: tuple[int, ...], dtype: Any) -> Array:
    return init(jax.random.fold_in(key, name), shape, dtype)


def decay_mask(module: nnx.Module) -> Params:
    """For each parameter, whether weight decay acts on it; same structure as the parameters."""
    state = nnx.state(module, nnx.Param)
    return nnx.to_pure_dict(nnx.map_state(lambda _, param: param.replace(param.decay), state))


def value_or_none(param: nnx.Param | None) -> Array | None:
    """The array of a parameter that a module may not have."""
    return None if param is None else param[...]


def count(module: nnx.Module) -> int:
    """Number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.to_pure_dict(nnx.state(module, nnx.Param))))


def shapes(module: nnx.Module) -> dict[str, jax.ShapeDtypeStruct]:
    """Path → shape and type of every parameter."""
    return {"/".join(map(str, path)): param.get_raw_value() for path, param in nnx.to_flat_state(nnx.state(module))}

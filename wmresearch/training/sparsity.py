"""How the places of a sparse head output's entries are found while it trains."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from wmresearch.config.head_output import SparseConfig
from wmresearch.config.sparsity import Blocks, Magnitude, NOfM, Proximal, Regrowing, RigL, Set, StraightThrough
from wmresearch.head_output import sparse_patterns as patterns
from wmresearch.head_output.weights import Params
from wmresearch.training.step import Metrics, StepFacts

MASK = "_mask"


class Masked(NamedTuple):
    """A weight under a mask, and the loss's gradient of all of its entries."""

    weight: Float[Array, "h n m"]
    mask: Bool[Array, "h n m"]
    gradient: Float[Array, "h n m"]


def constrain(params: Params, gradient: Params) -> Params:
    """The gradient without that of masked entries."""
    return {
        key: constrain(params[key], value)
        if isinstance(value, dict)
        else jnp.where(params[f"{key}{MASK}"], value, 0)
        if f"{key}{MASK}" in params
        else value
        for key, value in gradient.items()
    }


@dataclass(frozen=True)
class Sparsity:
    """Chooses places anew after a step, as the method says, and holds all other entries at zero (not with `ste`).

    Metric: `sparsity/density`, the share of entries that are in use and not zero.
    """

    config: SparseConfig
    steps: int
    width: int
    """d, of the maps."""

    @property
    def follows_mask(self) -> bool:
        """Whether only the gradient of entries in use is followed."""
        return not isinstance(self.config.method, StraightThrough)

    def __call__(self, params: Params, facts: StepFacts) -> tuple[Params, Metrics]:
        if self.config.stores_blocks:
            return (_move_blocks(self, params, facts) if isinstance(self.config.method, Set) else params), {}
        found = _masked(params, facts.gradient)
        leaves = self._chosen(list(found.values()), facts)
        used = jnp.sum(jnp.stack([jnp.sum(leaf.mask & (leaf.weight != 0)) for leaf in leaves]))
        density = used / sum(leaf.mask.size for leaf in leaves)
        return _put(params, dict(zip(found, leaves, strict=True))), {"sparsity/density": density}

    def _chosen(self, leaves: list[Masked], facts: StepFacts) -> list[Masked]:
        method, step = self.config.method, facts.step
        if isinstance(method, Regrowing):
            return _hold(_when(self.exchanges_at(step), lambda: self._exchanged(leaves, facts), leaves))
        if isinstance(method, StraightThrough):
            return _when((step + 1) % method.every == 0, lambda: self._cut(leaves, self._kept_units(leaves)), leaves)
        if isinstance(method, Magnitude):
            return _hold(_when(self._cuts_at(step), lambda: self._cut(leaves, self._units_at(leaves, step)), leaves))
        if isinstance(method, Proximal):
            shrunk = [self._shrunk(leaf, method.strength * facts.learning_rate) for leaf in leaves]
            end = round(method.end * self.steps) - 1
            open_ = step < end
            leaves = [
                jax.tree.map(lambda new, old: jnp.where(open_, new, old), a, b)
                for a, b in zip(shrunk, leaves, strict=True)
            ]
            return _hold(_when(step == end, lambda: self._cut(leaves, self._kept_units(leaves)), leaves))
        return _hold(leaves)

    # Which units: all matrices of all layers together, or each for itself.

    def _groups(self, leaves: list[Masked]) -> list[list[Masked]]:
        return [leaves] if self.config.allocation == "global" else [[leaf] for leaf in leaves]

    def _kept_units(self, leaves: list[Masked]) -> list[int]:
        """Units that each group keeps."""
        counts = [
            [patterns.kept_count(self.config.pattern, self.config.kept, leaf.mask.shape) for leaf in group]
            for group in self._groups(leaves)
        ]
        return [sum(group) for group in counts]

    def _units(self, leaves: list[Masked]) -> list[int]:
        return [
            sum(patterns.unit_count(self.config.pattern, leaf.mask.shape) for leaf in group)
            for group in self._groups(leaves)
        ]

    def _cut(self, leaves: list[Masked], counts: list[Any]) -> list[Masked]:
        """Only the largest units are used; of n:m, n·count/kept of each m."""
        pattern = self.config.pattern
        if isinstance(pattern, NOfM):
            kept, all_ = self._kept_units(leaves), self._units(leaves)
            out = []
            for leaf, count, least, most in zip(leaves, counts, kept, all_, strict=True):
                done = 1.0 if most == least else (most - count) / (most - least)
                n = jnp.round(pattern.m - (pattern.m - pattern.n) * done).astype(jnp.int32)
                out.append(leaf._replace(mask=patterns.largest_of_each(jnp.abs(leaf.weight), n, pattern.m)))
            return out
        out = []
        for group, count in zip(self._groups(leaves), counts, strict=True):
            sizes = [patterns.unit_sizes(pattern, leaf.weight) for leaf in group]
            out += self._with_units(group, patterns.largest(_flat(sizes), count))
        return out

    def _with_units(self, group: list[Masked], chosen: Bool[Array, " n"]) -> list[Masked]:
        pattern = self.config.pattern
        shapes = [patterns.units_of(pattern, leaf.mask).shape for leaf in group]
        return [
            leaf._replace(mask=patterns.spread(pattern, units))
            for leaf, units in zip(group, _unflat(chosen, shapes), strict=True)
        ]

    # Exchanges of the smallest against others.

    def exchanges_at(self, step: Int[Array, ""]) -> Bool[Array, ""]:
        """Whether units are exchanged after a step that counts from 0."""
        method = self.config.method
        assert isinstance(method, Regrowing)
        return ((step + 1) % method.every == 0) & (step + 1 < method.until * self.steps)

    def exchanged_share(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """Of the units in use."""
        method = self.config.method
        assert isinstance(method, Regrowing)
        return method.share * (1 + jnp.cos(math.pi * (step + 1) / (method.until * self.steps))) / 2

    def _exchanged(self, leaves: list[Masked], facts: StepFacts) -> list[Masked]:
        pattern = self.config.pattern
        out = []
        for index, (group, kept) in enumerate(zip(self._groups(leaves), self._kept_units(leaves), strict=True)):
            sizes = _flat([patterns.unit_sizes(pattern, leaf.weight) for leaf in group])
            used = _flat([patterns.units_of(pattern, leaf.mask) for leaf in group])
            moved = jnp.floor(self.exchanged_share(facts.step) * kept).astype(jnp.int32)
            stay = patterns.largest(jnp.where(used, sizes, -1), kept - moved)
            if isinstance(self.config.method, RigL):
                wish = _flat([patterns.unit_sizes(pattern, leaf.gradient) for leaf in group])
            else:
                assert facts.key is not None
                wish = jax.random.uniform(jax.random.fold_in(facts.key, index), sizes.shape)
            grown = patterns.largest(jnp.where(stay, -1, wish), moved)
            staying = self._with_units(group, stay)
            for leaf, old in zip(self._with_units(group, stay | grown), staying, strict=True):
                out.append(leaf._replace(weight=jnp.where(old.mask, leaf.weight, 0)))
        return out

    # Gradual cuts.

    def _cuts_at(self, step: Int[Array, ""]) -> Bool[Array, ""]:
        method = self.config.method
        assert isinstance(method, Magnitude)
        done, last = step + 1, round(method.end * self.steps)
        return (done >= method.begin * self.steps) & (done <= last) & ((done % method.every == 0) | (done == last))

    def _units_at(self, leaves: list[Masked], step: Int[Array, ""]) -> list[Any]:
        """Units that each group keeps after a step."""
        method = self.config.method
        assert isinstance(method, Magnitude)
        begin, end = method.begin * self.steps, round(method.end * self.steps)
        u = jnp.clip((step + 1 - begin) / max(end - begin, 1), 0, 1)
        cut = 1 - (1 - u) ** 3
        pairs = zip(self._units(leaves), self._kept_units(leaves), strict=True)
        return [most - jnp.round((most - least) * cut).astype(jnp.int32) for most, least in pairs]

    # Soft threshold.

    def _shrunk(self, leaf: Masked, threshold: Float[Array, ""]) -> Masked:
        """Each unit's size is made smaller by the threshold, down to 0."""
        pattern = self.config.pattern
        sizes = patterns.unit_sizes(pattern, leaf.weight)
        scale = jnp.maximum(sizes - threshold, 0) / jnp.where(sizes > 0, sizes, 1)
        if isinstance(pattern, Blocks):
            scale = jnp.repeat(jnp.repeat(scale, pattern.size, axis=1), pattern.size, axis=2)
        return leaf._replace(weight=(leaf.weight * scale).astype(leaf.weight.dtype))


def _move_blocks(sparsity: Sparsity, params: Params, facts: StepFacts) -> Params:
    """Stored blocks: the smallest of each head go to random free places of its grid, as zeros."""

    def moved(output: Params, key: Array) -> Params:
        blocks, rows, columns = output["blocks"], output["rows"], output["columns"]
        h, n, q, _ = blocks.shape
        grid = sparsity.width // q
        count = jnp.floor(sparsity.exchanged_share(facts.step) * n).astype(jnp.int32)
        sizes = jnp.sqrt(jnp.sum(jnp.square(blocks), axis=(2, 3)))
        order = jnp.argsort(jnp.argsort(sizes, axis=1), axis=1)  # 0: the smallest
        goes = order < count
        taken = jnp.zeros((h, grid * grid), bool).at[jnp.arange(h)[:, None], rows * grid + columns].max(~goes)
        wish = jnp.where(taken, -1.0, jax.random.uniform(key, taken.shape))
        free = jnp.argsort(-wish, axis=1)[:, :n]
        places = jnp.where(goes, jnp.take_along_axis(free, order, axis=1), rows * grid + columns)
        new = {"blocks": jnp.where(goes[..., None, None], 0, blocks), "rows": places // grid, "columns": places % grid}
        return output | {name: value.astype(output[name].dtype) for name, value in new.items()}

    def all_moved() -> Params:
        assert facts.key is not None
        blocks = {}
        for layer, block in params["blocks"].items():
            attention = block["attention"]
            output = moved(attention["head_output"], jax.random.fold_in(facts.key, layer))
            blocks[layer] = block | {"attention": attention | {"head_output": output}}
        return params | {"blocks": blocks}

    return jax.lax.cond(sparsity.exchanges_at(facts.step), all_moved, lambda: params)


def _when(due: Bool[Array, ""], change: Callable[[], list[Masked]], leaves: list[Masked]) -> list[Masked]:
    return jax.lax.cond(due, change, lambda: leaves)


def _hold(leaves: list[Masked]) -> list[Masked]:
    return [leaf._replace(weight=jnp.where(leaf.mask, leaf.weight, 0)) for leaf in leaves]


def _flat(arrays: list[Array]) -> Array:
    return jnp.concatenate([array.ravel() for array in arrays])


def _unflat(flat: Array, shapes: list[tuple[int, ...]]) -> list[Array]:
    out, start = [], 0
    for shape in shapes:
        out.append(flat[start : start + math.prod(shape)].reshape(shape))
        start += math.prod(shape)
    return out


def _masked(params: Params, gradient: Params, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Masked]:
    """Path → weight, mask and gradient of everything under a mask."""
    out: dict[tuple[Any, ...], Masked] = {}
    for key, value in params.items():
        if isinstance(value, dict):
            out |= _masked(value, gradient.get(key, {}), (*path, key))
        elif f"{key}{MASK}" in params:
            out[(*path, key)] = Masked(value, params[f"{key}{MASK}"], gradient[key])
    return out


def _put(params: Params, leaves: dict[tuple[Any, ...], Masked], path: tuple[Any, ...] = ()) -> Params:
    out: Params = {}
    for key, value in params.items():
        here = (*path, key)
        if isinstance(value, dict):
            out[key] = _put(value, leaves, here)
        elif here in leaves:
            out[key] = leaves[here].weight
        elif str(key).endswith(MASK):
            out[key] = leaves[(*path, str(key).removesuffix(MASK))].mask
        else:
            out[key] = value
    return out

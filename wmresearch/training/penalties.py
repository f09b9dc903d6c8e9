"""Penalties in training: their sum over a config's list as a function of parameters and step, and its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from wmresearch.algebra import FactoredMatrix, penalties
from wmresearch.config.penalty import (
    CosineStrength,
    GroupLassoPenalty,
    Penalty,
    PenaltyConfig,
    SchattenPenalty,
    TargetNorm,
    WarmUpStrength,
)
from wmresearch.head_output.weights import Params, join, split
from wmresearch.model.maps import Maps
from wmresearch.training.step import Metrics, Penalized

_FUNCTIONS: dict[str, Callable[[FactoredMatrix], Float[Array, ""]]] = {
    "nuclear": penalties.nuclear,
    "frobenius": penalties.frobenius,
    "spectral": penalties.spectral,
    "l1": penalties.l1,
    "head_overlap": penalties.head_overlap,
    "orthogonal_factors": penalties.orthogonal_factors,
}

_PROPORTIONAL = 4.0
"""Of the controller that keeps to a target: damps what its integral, `gain`, would make swing."""
_LARGEST_LOG = 12.0
_LEAST_SHARE = 1e-2
"""Of `initial`, below which the integral does not fall: else it would have to climb back for as long as M was small."""

Memory: TypeAlias = dict[str, Any]
"""By kind of penalty: `gradient` and `value` of those that are not computed at every step, `log_strength` of those with
a target."""


def penalty_function(config: Penalty, group: int) -> Callable[[FactoredMatrix], Float[Array, ""]]:
    """The penalty without its strength, of maps in which `group` neighbouring query heads share A."""
    if isinstance(config, SchattenPenalty):
        return partial(penalties.schatten, p=config.p)
    if isinstance(config, GroupLassoPenalty):
        groups: Any = (config.block, config.block) if config.groups == "blocks" else config.groups
        return partial(penalties.group_lasso, groups=groups)
    if config.kind == "factor_decay":
        return lambda maps: penalties.factor_decay(penalties.stack_group(maps, group))
    return _FUNCTIONS[config.kind]


def strength(config: PenaltyConfig, steps: int, step: Int[Array, ""]) -> Float[Array, ""]:
    """λ at a step that counts from 0, of a penalty without a target."""
    assert config.strength is not None
    done = jnp.asarray(step, float)
    if isinstance(config.schedule, WarmUpStrength):
        return config.strength * jnp.minimum((done + 1) / config.schedule.steps, 1.0)
    if isinstance(config.schedule, CosineStrength):
        final = config.schedule.final
        shape = (1 + jnp.cos(jnp.pi * done / max(steps - 1, 1))) / 2
        return config.strength * (final + (1 - final) * shape)
    return jnp.asarray(config.strength, float)


def steered(target: TargetNorm, maps: FactoredMatrix, log_strength: Float[Array, ""]) -> tuple[Array, Array]:
    """λ = exp(I + 4 e) and I, which grew by gain · e, with e = ln(‖M‖ / value): a PI controller of ln λ.

    ‖M‖ is the mean over heads and layers of the target's norm.
    """
    norms = maps.frobenius_norm() if target.norm == "frobenius" else maps.nuclear_norm()
    error = jnp.log(jnp.maximum(jnp.mean(norms), 1e-30) / target.value)
    return steered_strength(error, log_strength, _PROPORTIONAL, target.gain, target.initial)


def steered_strength(
    error: Float[Array, ""], log_strength: Float[Array, ""], proportional: float, gain: float, initial: float
) -> tuple[Array, Array]:
    """λ = exp(I + p e) and I, which grew by gain · e and does not fall below a hundredth of `initial`."""
    least = math.log(_LEAST_SHARE * initial)
    integral = jnp.clip(log_strength + gain * error, least, max(least, _LARGEST_LOG))
    return jnp.exp(jnp.minimum(integral + proportional * error, _LARGEST_LOG)), integral


@dataclass(frozen=True, eq=False)
class Penalties:
    """The gradient of Σ_p λ_p(step) · penalty_p(maps(params)), of the head outputs' parameters.

    The gradient of a penalty with `every: n` is computed at every n-th step and used again between, never multiplied by
    n: added after clipping, n times the gradient at every n-th step would vanish in Adam's moments (SCIENCE: traps).

    Metrics: `penalty/KIND`, the penalty's value; `penalty/KIND_strength`, λ; `penalty/KIND_added`, λ times the value,
    which is what the loss gains; `penalty/KIND_share`, that in relation to the loss.
    """

    configs: Sequence[Penalty]
    maps: Maps
    steps: int
    group: int
    """Neighbouring query heads that share A."""
    chosen: Params
    """For each parameter, whether it is a head output's."""

    def start(self, params: Params) -> Memory:
        """The memory before the first step."""
        own, _ = split(params, self.chosen)
        memory: Memory = {}
        for config in self.configs:
            kept: dict[str, Any] = {}
            if config.every > 1:
                kept |= {"gradient": jax.tree.map(jnp.zeros_like, own), "value": jnp.zeros((), float)}
            if config.target is not None:
                start = jnp.log(jnp.asarray(config.target.initial, float))
                kept |= {"log_strength": start, "strength": jnp.exp(start)}
            if kept:
                memory[config.kind] = kept
        return memory

    def __call__(self, params: Params, step: Int[Array, ""], loss: Float[Array, ""], memory: Memory) -> Penalized:
        own, rest = split(params, self.chosen)
        added: Params = {}
        metrics: Metrics = {}
        new: Memory = {}
        for config in self.configs:
            kept = memory.get(config.kind, {})
            fresh = partial(self._fresh, config, own, rest, kept)
            if config.every > 1:
                gradient, value, kept = jax.lax.cond(
                    step % config.every == 0, fresh, lambda kept=kept: (kept["gradient"], kept["value"], kept)
                )
                kept = kept | {"gradient": gradient, "value": value}
            else:
                gradient, value, kept = fresh()
            factor = strength(config, self.steps, step) if config.target is None else kept["strength"]
            scaled = jax.tree.map(lambda leaf, factor=factor: (factor * leaf).astype(leaf.dtype), gradient)
            added = join(added, scaled, both=jnp.add)
            gain = factor * value
            name = f"penalty/{config.kind}"
            metrics |= {name: value, f"{name}_strength": factor, f"{name}_added": gain, f"{name}_share": gain / loss}
            if kept:
                new[config.kind] = kept
        return Penalized(added, new, metrics)

    def _fresh(self, config: Penalty, own: Params, rest: Params, kept: Memory) -> tuple[Params, Array, Memory]:
        """Gradient and value of a penalty at the parameters, and its memory."""
        function = penalty_function(config, self.group)

        def value(own: Params) -> tuple[Float[Array, ""], FactoredMatrix]:
            found = self.maps(join(rest, own))
            return function(found).astype(float), found

        (now, found), gradient = jax.value_and_grad(value, has_aux=True)(own)
        if config.target is not None:
            factor, integral = steered(config.target, found, kept["log_strength"])
            kept = kept | {"log_strength": integral.astype(float), "strength": factor.astype(float)}
        return gradient, now, kept


def make_map_decay(rate: float, maps: Maps, chosen: Params) -> Callable[[Params], Params]:
    """Parameters → rate · ∇ ½ Σ ‖M_i‖_F², which an optimizer adds as decoupled decay."""

    def decay(params: Params) -> Params:
        own, rest = split(params, chosen)
        return jax.grad(lambda own: rate * penalties.frobenius(maps(join(rest, own))))(own)

    return decay

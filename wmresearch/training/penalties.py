"""Penalties in training: their sum over a config's list as a function of parameters and step, and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from wmresearch.algebra import FactoredMatrix, penalties
from wmresearch.config.penalty import CosineStrength, GroupLassoPenalty, Penalty, SchattenPenalty, WarmUpStrength
from wmresearch.head_output.weights import Params
from wmresearch.model.maps import Maps
from wmresearch.training.step import PenaltyGradient

_FUNCTIONS: dict[str, Callable[[FactoredMatrix], Float[Array, ""]]] = {
    "nuclear": penalties.nuclear,
    "frobenius": penalties.frobenius,
    "spectral": penalties.spectral,
    "l1": penalties.l1,
    "head_overlap": penalties.head_overlap,
    "orthogonal_factors": penalties.orthogonal_factors,
}


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


def strength(config: Penalty, steps: int, step: Int[Array, ""]) -> Float[Array, ""]:
    """λ at a step that counts from 0."""
    done = jnp.asarray(step, float)
    if isinstance(config.schedule, WarmUpStrength):
        return config.strength * jnp.minimum((done + 1) / config.schedule.steps, 1.0)
    if isinstance(config.schedule, CosineStrength):
        final = config.schedule.final
        shape = (1 + jnp.cos(jnp.pi * done / max(steps - 1, 1))) / 2
        return config.strength * (final + (1 - final) * shape)
    return jnp.asarray(config.strength, float)


def make_penalty_gradient(configs: Sequence[Penalty], maps: Maps, steps: int, group: int) -> PenaltyGradient:
    """The gradient of Σ_p λ_p(step) · penalty_p(maps(params)).

    Metrics: `penalty/KIND`, the penalty's value, and `penalty/KIND_added`, λ times it, which is what the loss gains.
    """
    functions = [(config, penalty_function(config, group)) for config in configs]

    def total(params: Params, step: Int[Array, ""]) -> tuple[Float[Array, ""], dict[str, Array]]:
        found = maps(params)
        added: list[Array] = []
        metrics: dict[str, Array] = {}
        for config, function in functions:
            value = function(found)
            added.append(strength(config, steps, step) * value)
            metrics |= {f"penalty/{config.kind}": value, f"penalty/{config.kind}_added": added[-1]}
        return jnp.sum(jnp.stack(added)), metrics

    return jax.grad(total, has_aux=True)

"""From the optimizer's config to an optax transformation."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from wmresearch.config.optimizer import AdamWConfig, CosineSchedule, LinearSchedule, MuonConfig, Optimizer, Schedule
from wmresearch.head_output.weights import MatrixAxes, Params, join
from wmresearch.training.parameters import ParameterFacts, facts_of


def make_schedule(schedule: Schedule, peak: float, steps: int) -> optax.Schedule:
    """Learning rate at a step that counts from 0.

    Warm-up: peak · (step + 1) / (warmup + 1). After it, with u = (step − warmup) / (steps − warmup) in [0, 1]:
    cosine peak · (f + (1 − f)(1 + cos πu)/2), linear peak · (1 − (1 − f) u), constant peak; f is `final`.
    """

    def rate(step: Any) -> Any:
        step = jnp.asarray(step, float)  # of a 32-bit integer JAX would make 32-bit floats, also in a float64 run
        u = jnp.clip((step - schedule.warmup) / jnp.maximum(steps - schedule.warmup, 1), 0.0, 1.0)
        after: Any = 1.0
        if isinstance(schedule, CosineSchedule):
            after = schedule.final + (1 - schedule.final) * (1 + jnp.cos(jnp.pi * u)) / 2
        elif isinstance(schedule, LinearSchedule):
            after = 1 - (1 - schedule.final) * u
        return peak * jnp.where(step < schedule.warmup, (step + 1) / (schedule.warmup + 1), after)

    return rate


def make_optimizer(config: Optimizer, steps: int, facts: Params) -> optax.GradientTransformationExtraArgs:
    """Clipping by the global norm, then AdamW or Muon; `facts` are the `ParameterFacts` of each trained parameter.

    `update` takes two gradients more, of some of the parameters each. `added` (the penalties') is added after clipping,
    before the moments: it is not clipped, and does not change how much of the loss's is. `decayed` (decay of the
    maps) is added after the moments, as decoupled weight decay is, and like that multiplied by the learning rate.
    """
    clip = optax.identity() if config.clip_norm is None else _clip(config.clip_norm)
    decay = _add_decay(decay_rates(config, facts))
    parts = [clip, _add_given("added")]
    decoupled = [decay, _add_given("decayed")]
    if isinstance(config, AdamWConfig) and config.decay == "gradient":
        parts, decoupled = [*parts, decay], decoupled[1:]
    if isinstance(config, MuonConfig) and config.adam_learning_rate is not None:
        decoupled.append(_scale_adam(config.adam_learning_rate / config.learning_rate, _muon_labels(config, facts)))
    return optax.chain(*parts, _moments(config, facts), *decoupled, _descend(config, steps))


def _clip(limit: float) -> optax.GradientTransformation:
    """The gradient g · min(1, limit / ‖g‖) by the norm of all gradients together, as `optax.clip_by_global_norm`.

    That divides each entry, which XLA does not repeat for each use of the result, so it writes the clipped gradient to
    memory; a product it repeats.
    """

    def scaled(updates: Params) -> Params:
        norm = optax.tree.norm(updates)
        scale = jnp.where(norm < limit, 1.0, limit / norm)
        return jax.tree.map(lambda u: u * scale.astype(u.dtype), updates)

    return optax.stateless(lambda updates, _: scaled(updates))


def decay_rates(config: Optimizer, facts: Params) -> Params:
    """Weight decay of each parameter."""

    def rate(about: ParameterFacts) -> float:
        own: float | None = getattr(config.decay_of, about.part)
        return (config.weight_decay if own is None else own) if about.decays else 0.0

    return jax.tree.map(rate, facts)


def _moments(config: Optimizer, facts: Params) -> optax.GradientTransformation:
    """The direction of a step, to be multiplied by the learning rate."""
    adam = optax.scale_by_adam(*config.betas, mu_dtype=config.momentum_dtype)
    if isinstance(config, AdamWConfig):
        return adam
    axes = jax.tree.map(lambda about: _muon_axes(config, about), facts)
    numbers = jax.tree.map(
        lambda found: optax.MaskedNode() if found is None else MuonDimensionNumbers(found.reads, found.writes),
        axes,
        is_leaf=_is_axes,
    )
    muon = _viewed(
        optax.chain(
            scale_by_muon(beta=config.momentum, weight_dimension_numbers=numbers, mu_dtype=config.momentum_dtype),
            optax.stateless(lambda updates, _: _times_shape_factor(config, updates, axes)),
        ),
        axes,
    )
    return optax.partition({"adam": adam, "muon": muon}, _muon_labels(config, facts))


def _muon_labels(config: MuonConfig, facts: Params) -> Params:
    """For each parameter `muon` or `adam`."""
    return jax.tree.map(lambda about: "adam" if _muon_axes(config, about) is None else "muon", facts)


def _scale_adam(ratio: float, labels: Params) -> optax.GradientTransformation:
    """The learning rate of what AdamW updates, of its decay too, in relation to that of the matrices."""
    return optax.stateless(
        lambda updates, _: jax.tree.map(
            lambda u, label: (ratio * u).astype(u.dtype) if label == "adam" else u, updates, labels
        )
    )


def muon_shape_factors(config: MuonConfig, parameters: dict[str, nnx.Variable]) -> dict[str, float]:
    """Path → what an orthogonalized update is multiplied by, of each declared parameter that Muon updates."""
    out = {}
    for path, parameter in parameters.items():
        axes = _muon_axes(config, facts_of(path, parameter))
        if axes is not None:
            out[path] = _shape_factor(config, axes.of or axes.view or parameter.get_raw_value().shape, axes)
    return out


def _shape_factor(config: MuonConfig, shape: tuple[int, ...], axes: MatrixAxes) -> float:
    fan_in, fan_out = (math.prod(shape[axis] for axis in side) for side in (axes.reads, axes.writes))
    if config.update_rms is None:
        return float(max(1.0, fan_out / fan_in) ** 0.5)
    return float(config.update_rms * max(fan_in, fan_out) ** 0.5)


def _times_shape_factor(config: MuonConfig, updates: Params, axes: Params) -> Params:
    scaled = lambda leaf, found: leaf * _shape_factor(config, found.of or leaf.shape, found)
    return jax.tree.map(scaled, updates, _masked_like(axes, updates))


def _muon_axes(config: MuonConfig, about: ParameterFacts) -> MatrixAxes | None:
    """The matrices that Muon orthogonalizes; None where AdamW updates."""
    axes = about.axes
    if axes is None or about.part == "embeddings":
        return None
    if config.heads == "fused" or axes.heads is None:
        return axes
    reads, writes = (tuple(axis for axis in side if axis != axes.heads) for side in (axes.reads, axes.writes))
    return MatrixAxes(reads, writes, None, axes.view, axes.of)


def _is_axes(value: Any) -> bool:
    return value is None or isinstance(value, MatrixAxes)


def _viewed(inner: optax.GradientTransformation, axes: Params) -> optax.GradientTransformation:
    """The transformation on parameters in the shapes in which their axes are counted."""

    def view(tree: Params) -> Params:
        return jax.tree.map(lambda leaf, found: leaf.reshape(found.view or leaf.shape), tree, _masked_like(axes, tree))

    def update(updates: Params, state: Any, params: Params | None = None) -> tuple[Params, Any]:
        new, state = inner.update(view(updates), state, None if params is None else view(params))
        return jax.tree.map(lambda leaf, old: leaf.reshape(old.shape), new, updates), state

    return optax.GradientTransformation(lambda params: inner.init(view(params)), update)


def _masked_like(axes: Params, tree: Params) -> Params:
    """The axes with the same leaves masked as in a tree."""
    return jax.tree.map(
        lambda leaf, found: leaf if isinstance(leaf, optax.MaskedNode) else found,
        tree,
        axes,
        is_leaf=lambda leaf: isinstance(leaf, optax.MaskedNode),
    )


def _add_given(name: str) -> optax.GradientTransformationExtraArgs:
    """Adds the gradient that `update` is given under a name, if any."""

    def update(updates: Params, state: Any, params: Params | None = None, **given: Params | None) -> tuple[Params, Any]:
        del params
        more = given.get(name)
        return (updates if more is None else join(updates, more, both=add)), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def _add_decay(rates: Params) -> optax.GradientTransformation:
    """Adds rate · p."""

    def decayed(u: Array, p: Array, rate: Any) -> Array:
        return u if is_zero(rate) else u + (rate * p).astype(p.dtype)

    def update(updates: Params, state: Any, params: Params | None = None) -> tuple[Params, Any]:
        return jax.tree.map(decayed, updates, params, rates), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def is_zero(rate: Any) -> bool:
    """Of a rate that is known while a program is made; one that the program is given is not zero."""
    return isinstance(rate, float) and rate == 0


def _descend(config: Optimizer, steps: int) -> optax.GradientTransformation:
    rate: Callable[[Any], Any] = make_schedule(config.schedule, config.learning_rate, steps)
    return optax.scale_by_learning_rate(rate)

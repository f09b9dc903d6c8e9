"""From the optimizer's config to an optax transformation."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax

from wmresearch.config.optimizer import AdamWConfig, CosineSchedule, LinearSchedule, Schedule
from wmresearch.head_output.weights import Params


def make_schedule(schedule: Schedule, peak: float, steps: int) -> optax.Schedule:
    """Learning rate at a step that counts from 0.

    Warm-up: peak · (step + 1) / (warmup + 1). After it, with u = (step − warmup) / (steps − warmup) in [0, 1]:
    cosine peak · (f + (1 − f)(1 + cos πu)/2), linear peak · (1 − (1 − f) u), constant peak; f is `final`.
    """

    def rate(step: Any) -> Any:
        step = jnp.asarray(step, float)  # of a 32-bit integer JAX would make 32-bit floats, also in a float64 run
        u = jnp.clip((step - schedule.warmup) / max(steps - schedule.warmup, 1), 0.0, 1.0)
        after: Any = 1.0
        if isinstance(schedule, CosineSchedule):
            after = schedule.final + (1 - schedule.final) * (1 + jnp.cos(jnp.pi * u)) / 2
        elif isinstance(schedule, LinearSchedule):
            after = 1 - (1 - schedule.final) * u
        return peak * jnp.where(step < schedule.warmup, (step + 1) / (schedule.warmup + 1), after)

    return rate


def add_given() -> optax.GradientTransformationExtraArgs:
    """Adds the gradient that `update` is given as `added`, if any."""

    def update(
        updates: Params, state: Any, params: Params | None = None, *, added: Params | None = None, **_: Any
    ) -> tuple[Params, Any]:
        del params
        return (updates if added is None else optax.tree.add(updates, added)), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def make_optimizer(config: AdamWConfig, steps: int, decays: Params) -> optax.GradientTransformationExtraArgs:
    """Clipping by the global norm, then AdamW; `decays` says for each parameter whether weight decay acts on it.

    A gradient given to `update` as `added` (that of the penalties) is not clipped, and does not change how much of the
    loss's is: it is added to it after clipping, before the moments.

    Decay is decoupled and multiplied by the learning rate. Loshchilov & Hutter 2019 (arXiv 1711.05101).
    """
    clip = optax.identity() if config.clip_norm is None else optax.clip_by_global_norm(config.clip_norm)
    rate = make_schedule(config.schedule, config.learning_rate, steps)
    b1, b2 = config.betas
    adamw = optax.adamw(rate, b1=b1, b2=b2, weight_decay=config.weight_decay, mask=decays)
    return optax.chain(clip, add_given(), adamw)

"""Skips the update of a step whose gradient is not finite, or suddenly many times larger than those before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from wmresearch.config.optimizer import SkippedSpikes
from wmresearch.training.step import Metrics, TrainState

MEMORY = "spikes"
IN_A_ROW = "updates_skipped_in_a_row"
_BETA = 0.99
_LEARNING = 20
"""Updates before the average says anything."""


@dataclass(frozen=True)
class SkipSpikes:
    """The old state in place of the new one, but for the step, where |g| > factor · ḡ or anything is not finite.

    ḡ is the bias-corrected exponential average (β = 0.99) of the norms of followed gradients. Metrics:
    `updates_skipped`, all so far; `updates_skipped_in_a_row`, up to this one.
    """

    config: SkippedSpikes

    def start(self) -> dict[str, Any]:
        """The memory before the first step."""
        return {MEMORY: {name: jnp.zeros((), float) for name in ("average", "followed", "skipped", "in_a_row")}}

    def __call__(
        self, old: TrainState, new: TrainState, loss: Float[Array, ""], norm: Float[Array, ""]
    ) -> tuple[TrainState, Metrics]:
        kept = old.memory[MEMORY]
        usual = kept["average"] / jnp.maximum(1 - _BETA ** kept["followed"], 1 - _BETA)
        large = (kept["followed"] >= _LEARNING) & (norm > self.config.factor * usual)
        skip = large | ~jnp.isfinite(norm) | ~jnp.isfinite(loss)
        others = lambda state: {name: value for name, value in state.memory.items() if name != MEMORY}
        params, optimizer, memory = jax.tree.map(
            lambda before, after: jnp.where(skip, before, after),
            (old.params, old.optimizer, others(old)),
            (new.params, new.optimizer, others(new)),
        )
        counted = {
            "average": jnp.where(skip, kept["average"], _BETA * kept["average"] + (1 - _BETA) * norm),
            "followed": kept["followed"] + ~skip,
            "skipped": kept["skipped"] + skip,
            "in_a_row": jnp.where(skip, kept["in_a_row"] + 1, 0),
        }
        counted = {name: value.astype(kept[name].dtype) for name, value in counted.items()}
        metrics = {"updates_skipped": counted["skipped"], IN_A_ROW: counted["in_a_row"]}
        return TrainState(params, optimizer, new.step, memory | {MEMORY: counted}), metrics

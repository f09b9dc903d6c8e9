"""One run: everything that decides its result, and what does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from wmresearch.config.base import AllowList, Check, Config, Operational
from wmresearch.config.data import DataConfig
from wmresearch.config.model import ModelConfig
from wmresearch.config.optimizer import Optimizer
from wmresearch.config.training import ParallelConfig, TrackingConfig, TrainingConfig


class RunConfig(Config):
    """A model, the text it learns, how, for how long, and the seed."""

    model: ModelConfig
    data: DataConfig
    optimizer: Optimizer
    penalties: Annotated[tuple[Any, ...], AllowList] = ()
    """Penalties on W_M added to the loss. (None is implemented yet.)"""
    training: TrainingConfig
    parallel: Annotated[ParallelConfig, Operational()] = ParallelConfig()
    tracking: Annotated[TrackingConfig, Operational()] = TrackingConfig()
    seed: int = Field(default=0, ge=0, lt=2**32)

    def checks(self) -> Iterator[Check]:
        warmup, steps = self.optimizer.schedule.warmup, self.training.steps
        if warmup > steps:
            yield Check("optimizer.schedule.warmup", f"at most training.steps = {steps}", ("training.steps",))
        if self.penalties:
            yield Check("penalties", "an empty list: no penalty is implemented yet")
        if self.parallel.mesh and any(size > 1 for size in self.parallel.mesh.values()):
            yield Check("parallel.mesh", "null: more than one device is not implemented yet")

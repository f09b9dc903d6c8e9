"""How parameters are updated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from wmresearch.config.base import AllowList, Check, Config, NameAsKind


class CosineSchedule(Config):
    """Linear warm-up to the learning rate, then half a cosine down to `final` of it at the last step."""

    kind: Literal["cosine"] = "cosine"
    warmup: int = Field(default=0, ge=0)
    """Steps of warm-up."""
    final: float = Field(default=0.1, ge=0, le=1)
    """Learning rate at the end, as a share of the peak."""


class LinearSchedule(Config):
    """Linear warm-up to the learning rate, then linearly down to `final` of it at the last step."""

    kind: Literal["linear"] = "linear"
    warmup: int = Field(default=0, ge=0)
    """Steps of warm-up."""
    final: float = Field(default=0.0, ge=0, le=1)
    """Learning rate at the end, as a share of the peak."""


class ConstantSchedule(Config):
    """Linear warm-up to the learning rate, which then stays."""

    kind: Literal["constant"] = "constant"
    warmup: int = Field(default=0, ge=0)
    """Steps of warm-up."""


Schedule = Annotated[CosineSchedule | LinearSchedule | ConstantSchedule, Field(discriminator="kind"), NameAsKind]


class AdamWConfig(Config):
    """AdamW with decoupled decay on matrices only, not on biases, gains or vectors (Loshchilov & Hutter 2019)."""

    kind: Literal["adamw"] = "adamw"
    learning_rate: float = Field(gt=0)
    """At the peak of the schedule."""
    betas: Annotated[tuple[float, float], AllowList] = (0.9, 0.95)
    weight_decay: float = Field(default=0.1, ge=0)
    """Multiplied by the learning rate at each step, as in PyTorch and optax."""
    clip_norm: float | None = Field(default=1.0, gt=0)
    """Largest global norm of the gradient; null means no clipping."""
    schedule: Schedule = CosineSchedule()

    def checks(self) -> Iterator[Check]:
        if not all(0 <= beta < 1 for beta in self.betas):
            yield Check("betas", "two numbers from 0 up to, not including, 1")


Optimizer = Annotated[AdamWConfig, NameAsKind]

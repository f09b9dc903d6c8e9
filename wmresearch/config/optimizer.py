"""How parameters are updated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from wmresearch.config.base import AllowList, Check, Config, NameAsKind, Traced


class CosineSchedule(Config):
    """Linear warm-up to the learning rate, then half a cosine down to `final` of it at the last step."""

    kind: Literal["cosine"] = "cosine"
    warmup: Annotated[int, Traced()] = Field(default=0, ge=0)
    """Steps of warm-up."""
    final: Annotated[float, Traced()] = Field(default=0.1, ge=0, le=1)
    """Learning rate at the end, as a share of the peak."""


class LinearSchedule(Config):
    """Linear warm-up to the learning rate, then linearly down to `final` of it at the last step."""

    kind: Literal["linear"] = "linear"
    warmup: Annotated[int, Traced()] = Field(default=0, ge=0)
    """Steps of warm-up."""
    final: Annotated[float, Traced()] = Field(default=0.0, ge=0, le=1)
    """Learning rate at the end, as a share of the peak."""


class ConstantSchedule(Config):
    """Linear warm-up to the learning rate, which then stays."""

    kind: Literal["constant"] = "constant"
    warmup: Annotated[int, Traced()] = Field(default=0, ge=0)
    """Steps of warm-up."""


Schedule = Annotated[CosineSchedule | LinearSchedule | ConstantSchedule, Field(discriminator="kind"), NameAsKind]


class DecayOf(Config):
    """Weight decay of the matrices of one part of the model; null follows `weight_decay`."""

    head_output: Annotated[float | None, Traced()] = Field(default=None, ge=0)
    """What the heads read and write: W_V and W_O, or A and B."""
    queries_keys: Annotated[float | None, Traced()] = Field(default=None, ge=0)
    mlp: Annotated[float | None, Traced()] = Field(default=None, ge=0)
    embeddings: Annotated[float | None, Traced()] = Field(default=None, ge=0)
    """Token and position embeddings, and logits of their own."""


class SkippedSpikes(Config):
    """Updates that are left out: where loss or gradient is not finite, or the gradient suddenly larger."""

    factor: float = Field(default=10.0, gt=1)
    """How many times its moving average (over about 100 updates) a gradient's norm may be."""
    in_a_row: int = Field(default=3, ge=1)
    """Most that are skipped one after another; after more of them the run has diverged."""


class OptimizerConfig(Config):
    """What every optimizer has."""

    kind: str
    learning_rate: Annotated[float, Traced()] = Field(gt=0)
    """At the peak of the schedule."""
    betas: Annotated[tuple[float, float], AllowList] = (0.9, 0.95)
    """Of Adam's two moments."""
    momentum_dtype: Literal["bfloat16", "float32"] | None = None
    """Type in which Adam's first moment and Muon's momentum are kept; null: that of the parameters. The second moment
    keeps theirs: its steps of 1 − β₂ are less than bfloat16 resolves."""
    weight_decay: Annotated[float, Traced()] = Field(default=0.1, ge=0)
    """Of matrices, not of biases, gains or vectors. Multiplied by the learning rate, as in PyTorch and optax."""
    decay_of: DecayOf = DecayOf()
    """Another weight decay for one part of the model."""
    frobenius_decay: Annotated[float, Traced()] = Field(default=0.0, ge=0)
    """Decoupled decay of the heads' maps, λ ∇ ½ Σ ‖M_i‖_F² (Khodak et al. 2021, arXiv 2105.01029)."""
    clip_norm: float | None = Field(default=1.0, gt=0)
    """Largest global norm of the gradient; null means no clipping."""
    skip_spikes: SkippedSpikes | None = None
    """Which updates are skipped, and counted in the metric `updates_skipped`; null: none, and the first that is not
    finite ends the run."""
    schedule: Schedule = CosineSchedule()

    def checks(self) -> Iterator[Check]:
        if not all(0 <= beta < 1 for beta in self.betas):
            yield Check("betas", "two numbers from 0 up to, not including, 1")


class AdamWConfig(OptimizerConfig):
    """AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101), or Adam with the decay in the gradient."""

    kind: Literal["adamw"] = "adamw"
    decay: Literal["decoupled", "gradient"] = "decoupled"
    """decoupled: beside the moments, which is not an L2 penalty. gradient: L2, wd · p added to the clipped gradient."""


class MuonConfig(OptimizerConfig):
    """Muon on the matrices within layers (Jordan et al. 2024), AdamW on embeddings, gains and biases.

    An update is orthogonalized and multiplied by its shape factor: √max(1, fan_out / fan_in), or with `update_rms` ρ
    ρ √max(fan_in, fan_out) (Liu et al. 2025, arXiv 2502.16982). The factors stand in the run's manifest: that of a
    fused d × d W_O is 1, that of one head's r × d block √(d/r).
    """

    kind: Literal["muon"] = "muon"
    heads: Literal["fused", "per_head"] = "fused"
    """What is orthogonalized of queries, keys and two-factor heads: all heads as one matrix, or each by itself."""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    update_rms: float | None = Field(default=None, gt=0)
    """Root mean square of an update's entries, whatever the shape (0.2 is AdamW's); null: the shape factor above."""
    adam_learning_rate: Annotated[float | None, Traced()] = Field(default=None, gt=0)
    """Of what AdamW updates; null means `learning_rate`."""


def _adamw_unless_said(value: Any) -> Any:
    return {"kind": "adamw", **value} if isinstance(value, dict) else value


Optimizer = Annotated[
    AdamWConfig | MuonConfig, Field(discriminator="kind"), BeforeValidator(_adamw_unless_said), NameAsKind
]

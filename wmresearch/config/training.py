"""How long a run trains, what it writes and how often, on which devices, and who watches."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from wmresearch.config.base import Config, Operational


class TrainingConfig(Config):
    """The loop."""

    steps: int = Field(ge=1)
    """Optimizer steps."""
    evaluate_every: int | None = Field(default=None, ge=1)
    """Steps between evaluations of the whole validation split; the last step always has one. null: only the last."""
    diagnostics: Annotated[bool, Operational()] = True
    """Whether each evaluation measures the heads' maps: singular values, ranks, norms, overlap."""
    log_every: Annotated[int, Operational()] = Field(default=10, ge=1)
    """Steps between lines of metrics.jsonl."""
    steps_per_dispatch: Annotated[int, Operational()] = Field(default=16, ge=1)
    """Steps that one call of the compiled program makes."""
    checkpoint_every: Annotated[int | None, Operational()] = Field(default=None, ge=1)
    """Steps between checkpoints; the last step always has one. null: only the last."""
    keep: Annotated[int, Operational()] = Field(default=2, ge=1)
    """Newest checkpoints kept."""


class ExecutionConfig(Config):
    """How a step is carried out: what it takes of memory and of compilation. Changes no more than rounding."""

    remat: Literal["none", "products", "layers"] = "none"
    """What the backward pass computes again in place of keeping it: nothing; all but the products with weights; or all
    within a layer (Chen et al. 2016, arXiv 1604.06174). On CPUs XLA undoes this unless layers are scanned."""
    scan_layers: bool = False
    """One layer in the program for all of equal shapes, in place of one for each: a deep model is traced faster, and so
    starts again faster; steps are slower."""
    logits_block: int | None = Field(default=None, ge=1)
    """Tokens whose logits are held at a time, for large vocabularies; null: all of a batch."""


class ParallelConfig(Config):
    """Where a run is placed. Does not change what it computes."""

    mesh: dict[Literal["data", "head", "run"], Annotated[int, Field(ge=1)]] | None = None
    """Devices along each axis; null means one device. (Axes other than null are not implemented yet.)"""


class WandbConfig(Config):
    """Weights & Biases."""

    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    """`auto` is online where the user is logged in, else offline."""
    project: str = "wmresearch"
    entity: str | None = None


class TrackingConfig(Config):
    """Who is told about a run besides its own directory."""

    wandb: WandbConfig = WandbConfig()

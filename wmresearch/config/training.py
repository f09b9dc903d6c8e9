"""How long a run trains, what it writes and how often, on which devices, and who watches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from wmresearch.config.base import Check, Config, Operational


class TrainingConfig(Config):
    """The loop."""

    steps: int = Field(ge=1)
    """Optimizer steps."""
    evaluate_every: int | None = Field(default=None, ge=1)
    """Steps between evaluations of the whole validation split; the last step always has one. null: only the last."""
    diagnostics: Annotated[bool, Operational()] = True
    """Whether each evaluation measures the heads' maps: singular values, ranks, norms, overlap."""
    tasks: Annotated[bool, Operational()] = True
    """Whether the finished model is asked for associative recall and induction."""
    log_every: Annotated[int, Operational()] = Field(default=10, ge=1)
    """Steps between lines of metrics.jsonl."""
    steps_per_dispatch: Annotated[int, Operational()] = Field(default=16, ge=1)
    """Steps that one call of the compiled program makes."""
    checkpoint_every: Annotated[int | None, Operational()] = Field(default=None, ge=1)
    """Steps between checkpoints; the last step always has one. null: only the last."""
    keep: Annotated[int, Operational()] = Field(default=2, ge=1)
    """Newest checkpoints kept."""
    keep_every: Annotated[int | None, Operational()] = Field(default=None, ge=1)
    """The checkpoint of every so manieth step is kept for ever. null: none."""
    keep_best: Annotated[bool, Operational()] = False
    """Whether the checkpoint of the least validation loss is kept too, of those whose step was evaluated."""

    def checks(self) -> Iterator[Check]:
        every = self.checkpoint_every
        if self.keep_every is not None and (every is None or self.keep_every % every):
            expected = "null, as checkpoint_every is" if every is None else f"a multiple of checkpoint_every = {every}"
            yield Check("keep_every", expected, ("checkpoint_every",))


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
    cohort: Literal["map", "vmap"] = "map"
    """How a sweep trains runs that differ in seed and numbers alone by one program: by calls of it, so that each has
    the bits that it has alone; or batched, all in one call, for small models on accelerators."""
    accumulate: int = Field(default=1, ge=1)
    """Parts of a batch whose gradients are added one after another: a step holds the activations of one part."""


Devices = Annotated[int, Field(ge=1)] | Literal["auto"]
"""As many, or as many as there are and fit."""


class MeshConfig(Config):
    """Devices along each axis: data · head · run in all."""

    data: Devices = 1
    """Parts of a batch; parameters are the same on each, gradients are added."""
    head: Devices = 1
    """Parts of each layer's heads, of the MLP's hidden units and of the vocabulary."""
    run: Devices = 1
    """Runs of a sweep's cohort that are trained side by side, each on one device; a run alone has 1. Without a mesh,
    and by auto: one for each accelerator, or for each core of a CPU, as far as memory allows."""

    @property
    def divides(self) -> bool:
        """Whether a run has several devices."""
        return (self.data, self.head) != (1, 1)


class ParallelConfig(Config):
    """Where a run is placed. Changes no more than rounding."""

    mesh: MeshConfig | None = None
    """null means one device."""
    implementation: Literal["shard_map", "jit"] = "shard_map"
    """What exchanges between devices: those written in the code, or those that XLA finds from shardings."""
    shard_positions: bool = False
    """Between layers each device of the head axis has a part of the positions: a reduce-scatter and an all-gather in
    place of each all-reduce, and less memory (Korthikanti et al. 2022, arXiv 2205.05198)."""
    shard_optimizer: bool = False
    """The optimizer's state is divided over the data axis (ZeRO-1, Rajbhandari et al. 2019, arXiv 1910.02054)."""


class WandbConfig(Config):
    """Weights & Biases."""

    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    """`auto` is online where the user is logged in, else offline."""
    project: str = "wmresearch"
    entity: str | None = None


class TrackingConfig(Config):
    """Who is told about a run besides its own directory."""

    wandb: WandbConfig = WandbConfig()

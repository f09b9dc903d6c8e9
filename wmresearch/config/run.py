"""One run: everything that decides its result, and what does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from wmresearch.config.base import AllowList, Check, Config, Operational
from wmresearch.config.data import DataConfig
from wmresearch.config.dynamic_rank import DynamicRankConfig
from wmresearch.config.model import ModelConfig, listed_divisors
from wmresearch.config.optimizer import MuonConfig, Optimizer
from wmresearch.config.penalty import GroupLassoPenalty, Penalty, ProximalPenaltyConfig
from wmresearch.config.training import ExecutionConfig, ParallelConfig, TrackingConfig, TrainingConfig


class RunConfig(Config):
    """A model, the text it learns, how, for how long, and the seed."""

    model: ModelConfig
    data: DataConfig
    optimizer: Optimizer
    penalties: Annotated[tuple[Penalty, ...], AllowList] = ()
    """Penalties on the heads' maps W_M, added to the loss."""
    training: TrainingConfig
    execution: Annotated[ExecutionConfig, Operational()] = ExecutionConfig()
    parallel: Annotated[ParallelConfig, Operational()] = ParallelConfig()
    tracking: Annotated[TrackingConfig, Operational()] = TrackingConfig()
    seed: int = Field(default=0, ge=0, lt=2**32)

    def checks(self) -> Iterator[Check]:
        warmup, steps = self.optimizer.schedule.warmup, self.training.steps
        if warmup > steps:
            yield Check("optimizer.schedule.warmup", f"at most training.steps = {steps}", ("training.steps",))
        for index, penalty in enumerate(self.penalties):
            if penalty.kind in [other.kind for other in self.penalties[:index]]:
                yield Check(f"penalties.{index}.kind", "each kind of penalty once")
            if isinstance(penalty, GroupLassoPenalty) and penalty.block and self.model.d_model % penalty.block:
                expected = f"a divisor of model.d_model = {self.model.d_model}"
                yield Check(f"penalties.{index}.block", expected, ("model.d_model",))
            proximal = isinstance(penalty, ProximalPenaltyConfig) and penalty.step == "proximal"
            if proximal and not self.model.head_output.two_factors:
                expected = (
                    f"gradient: a proximal step needs stored factors A, B, which {self.model.head_output.kind} lacks"
                )
                yield Check(f"penalties.{index}.step", expected, ("model.head_output",))
            elif proximal and self.model.head_output.kind == "standard" and self.model.head_width > self.model.d_model:
                expected = f"gradient: a proximal step needs d_head of at most d_model = {self.model.d_model}"
                yield Check(f"penalties.{index}.step", expected, ("model.d_head", "model.d_model", "model.n_heads"))
        if self.data.mixture is not None and self.model.context < 3:
            yield Check("model.context", "at least 3: a task has no room in less", ("data.mixture",))
        chosen = self.model.head_output
        if isinstance(chosen, DynamicRankConfig):
            yield from chosen.checks_over(self.training)
            if isinstance(self.optimizer, MuonConfig) and self.optimizer.heads != "fused":
                expected = "fused: the directions of all heads of a dynamic_rank are one matrix"
                yield Check("optimizer.heads", expected, ("model.head_output",))
        yield from self._placing_checks()

    def _placing_checks(self) -> Iterator[Check]:
        """Whether batch, heads and positions can be divided as asked; how many devices there are is known later."""
        mesh, parts, batch = self.parallel.mesh, self.execution.accumulate, self.data.batch_size
        if batch % parts:
            expected = f"a divisor of data.batch_size = {batch}: {listed_divisors(batch, near=parts)}"
            yield Check("execution.accumulate", expected, ("data.batch_size",))
        if mesh is None:
            return
        rows, heads = batch // parts, self.model.n_heads
        if mesh.data != "auto" and rows % mesh.data and not batch % parts:
            of = f"data.batch_size = {batch}" + (f" / execution.accumulate = {parts}" if parts > 1 else "")
            expected = f"a divisor of {of}: {listed_divisors(rows, near=mesh.data)}"
            yield Check("parallel.mesh.data", expected, ("data.batch_size", "execution.accumulate"))
        if mesh.head != "auto" and mesh.head > heads:
            sizes = listed_divisors(heads, near=heads)
            expected = f"at most model.n_heads = {heads}; without padded heads: {sizes}"
            yield Check("parallel.mesh.head", expected, ("model.n_heads",))
        context = self.model.context
        if self.parallel.shard_positions and mesh.head != "auto" and context % mesh.head:
            expected = f"a divisor of model.context = {context}, since positions are divided too: "
            expected += listed_divisors(context, near=mesh.head)
            yield Check("parallel.mesh.head", expected, ("model.context", "parallel.shard_positions"))
        if mesh.run not in (1, "auto") and mesh.divides:
            yield Check("parallel.mesh.run", "1: runs side by side have one device each", ("parallel.mesh",))

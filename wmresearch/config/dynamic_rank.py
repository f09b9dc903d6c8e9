"""Heads whose ranks differ and change while they train."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field

from wmresearch.config.base import AllowList, Check, Operational
from wmresearch.config.head_output_base import HeadOutputConfig, rank_within
from wmresearch.config.rank_method import FixedRanks, RankMethod

if TYPE_CHECKING:
    from wmresearch.config.model import ModelConfig
    from wmresearch.config.training import TrainingConfig

Ranks: TypeAlias = tuple[tuple[int, ...], ...]
"""For each layer the rank of each key/value head; 0 where a head is gone."""


class DynamicRankConfig(HeadOutputConfig):
    """W_M_i = A_i B_i of a rank for each head, that a method finds; directions that are cut leave the arrays.

    `fine_tune_steps` before the end, exactly `total_rank` directions over all layers and heads are kept, and the run
    goes on with those alone.
    """

    kind: Literal["dynamic_rank"] = "dynamic_rank"
    rank: int | None = Field(default=None, ge=1)
    """r of every head at first; null where there are `ranks`."""
    ranks: Annotated[tuple[Annotated[tuple[Annotated[int, Field(ge=0)], ...], AllowList], ...], AllowList] | None = None
    """For each layer a list with a rank for each key/value head; a head of rank 0 is not there, its queries neither."""
    ranks_from: Annotated[str | None, Operational()] = None
    """The directory of a run: `ranks` are those that it found, filled in when the config is loaded."""
    method: RankMethod = FixedRanks()
    total_rank: int | None = Field(default=None, ge=1)
    """Σ of all ranks after the cut; null where ranks are fixed."""
    fine_tune_steps: int | None = Field(default=None, ge=0)
    """Steps after the cut; null where ranks are fixed."""
    compact_at: Annotated[tuple[Annotated[int, Field(ge=1)], ...], AllowList] = ()
    """Steps before the cut at which directions that are closed then (by gate, by budget, by energy) leave for good."""
    bucket: int = Field(default=8, ge=1)
    """Ranks are padded with zeros to a multiple of this, and heads of equal width are computed together; where that
    would be more than four widths, neighbouring ones become one."""

    def checks(self) -> Iterator[Check]:
        given = [name for name in ("rank", "ranks", "ranks_from") if getattr(self, name) is not None]
        if given not in (["rank"], ["ranks"], ["ranks_from"], ["ranks", "ranks_from"]):
            yield Check("rank", "one of rank, ranks and ranks_from", ("ranks", "ranks_from"))
        finds = self.method.kind != "fixed"
        for name, expected in (("total_rank", "the sum of all ranks"), ("fine_tune_steps", "the number of steps")):
            if (getattr(self, name) is not None) != finds:
                said = f"{expected} after the cut" if finds else "null, unless the method finds ranks"
                yield Check(name, said, ("method",))
        if self.compact_at and self.method.kind not in ("hard_concrete", "budgeted", "energy"):
            yield Check("compact_at", "an empty list: this method closes no direction before the cut", ("method",))
        if list(self.compact_at) != sorted(set(self.compact_at)):
            yield Check("compact_at", "steps in rising order, each once")
        if self.method.kind == "nested" and self.ranks is not None:
            yield Check("method", "another method, or one `rank` for all heads", ("ranks",))

    def checks_in(self, model: ModelConfig) -> Iterator[Check]:
        if self.order not in ("auto", "attend_then_write"):
            yield Check("head_output.order", "auto or attend_then_write: heads of unequal ranks have no other order")
        if self.rank is not None and self.ranks is None:
            yield from rank_within(self.rank, model)
        around = ("d_model", "n_layers", "n_heads", "n_kv_heads")
        if self.ranks is not None and len(self.ranks) != model.n_layers:
            yield Check("head_output.ranks", f"a list for each of n_layers = {model.n_layers} layers", around)
        for layer, row in enumerate(self.ranks or ()):
            if len(row) != model.kv_heads or max(row, default=0) > model.d_model:
                expected = f"a rank from 0 to d_model = {model.d_model} for each of {model.kv_heads} key/value heads"
                yield Check(f"head_output.ranks.{layer}", expected, around)
        if self.ranks is None and self.rank is None:
            return
        all_of_them = sum(map(sum, self.all_ranks(model)))
        if all_of_them == 0:
            yield Check("head_output.ranks", "at least one rank above 0")
        if self.total_rank is not None and self.total_rank > all_of_them:
            expected = f"at most {all_of_them}, the sum of all ranks at first"
            yield Check("head_output.total_rank", expected, ("head_output.rank", "head_output.ranks", *around))

    def checks_over(self, training: TrainingConfig) -> Iterator[Check]:
        """The rules between this head output and the length of the run; paths start at the model."""
        if self.fine_tune_steps is None:
            return
        around = ("training.steps", "model.head_output")
        if self.fine_tune_steps >= training.steps:
            expected = f"less than training.steps = {training.steps}"
            yield Check("model.head_output.fine_tune_steps", expected, around)
        elif self.compact_at and self.compact_at[-1] >= self.cut_step(training.steps):
            expected = f"steps before the cut, which is at step {self.cut_step(training.steps)}"
            yield Check("model.head_output.compact_at", expected, around)

    def cut_step(self, steps: int) -> int:
        """After how many of a run's steps it is cut to `total_rank`; after all where ranks are fixed."""
        return steps - (self.fine_tune_steps or 0)

    def all_ranks(self, model: ModelConfig) -> Ranks:
        """The rank of each key/value head of each layer."""
        if self.ranks is not None:
            return self.ranks
        assert self.rank is not None
        return ((self.rank,) * model.kv_heads,) * model.n_layers

    def full_rank(self) -> int:
        """The largest rank of a head at first, by which its directions are numbered."""
        return self.rank or max(max(row, default=0) for row in self.ranks or ())

"""A run's compiled functions while its model has one shape. Heads that lose directions take it through several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wmresearch.config import RunConfig
from wmresearch.config.dynamic_rank import DynamicRankConfig
from wmresearch.config.model import ModelConfig
from wmresearch.config.traced import program_key
from wmresearch.config.training import TrainingConfig
from wmresearch.data import TokenizedCorpus
from wmresearch.head_output.rank_layout import RankLayout
from wmresearch.head_output.weights import Params
from wmresearch.model.cost import Cost, model_cost
from wmresearch.parallel.agreement import agreed, from_first, several
from wmresearch.training import rank_cut
from wmresearch.training.ahead import Compiling, compiling
from wmresearch.training.diagnostics import Diagnostics, effective_decay, make_diagnostics
from wmresearch.training.evaluation import Evaluation, make_evaluator
from wmresearch.training.program import Program, make_program
from wmresearch.training.shared import Shared
from wmresearch.training.step import Dispatch, TrainState
from wmresearch.training.task_evaluation import AskTasks, make_task_evaluator


@dataclass(frozen=True, eq=False)
class Stage:
    """What a run computes with."""

    program: Program
    room: int
    """Steps that one dispatch has room for."""
    dispatch: Dispatch
    validate: Compiling[[Params], Evaluation]
    test: Compiling[[Params], Evaluation] | None
    tasks: AskTasks
    measure: Compiling[[Params], Diagnostics]
    decay: Compiling[[TrainState, Mapping[str, Any]], Diagnostics]

    def ahead(self) -> Iterator[Callable[[], None]]:
        """What compiles each of the functions that a run calls, in the order in which it calls them.

        Nothing for a program of several devices.
        """
        if self.program.arrangement is not None:
            return
        training, config = self.program.config.training, self.program.config
        state, given = self.program.state_like(), self.program.given()
        if isinstance(self.dispatch, Compiling):
            shape = (self.room, config.data.batch_size, config.model.context + 1)
            yield partial(self.dispatch.compile, state, jax.ShapeDtypeStruct(shape, jnp.int32), 1, given)
        if training.diagnostics:
            yield partial(self.measure.compile, state.params)
        yield partial(self.validate.compile, state.params)
        if training.diagnostics:
            yield partial(self.decay.compile, state, given.numbers)
        if self.test is not None:
            yield partial(self.test.compile, state.params)
        if training.tasks:
            yield partial(self.tasks.compile, state.params, config.seed)


@dataclass
class Stages:
    """The stages of a run, each made once: models whose heads lie in equal layouts share one, and compile once.

    So do the runs of a cohort, whose programs are equal.
    """

    config: RunConfig
    corpus: TokenizedCorpus
    shared: Shared = field(default_factory=Shared)

    def of(self, model: ModelConfig) -> Stage:
        """The stage of a model of this run."""
        key = program_key(self.config), _layout(model)
        config = self.config.model_copy(update={"model": model})
        return self.shared.stage(key, config, lambda: self._make(self._program(model)))

    def cost(self, model: ModelConfig) -> Cost:
        return model_cost(model, self.corpus.tokenizer.vocab_size)

    def cut(
        self, model: ModelConfig, state: TrainState, step: int, tokens: np.ndarray
    ) -> tuple[ModelConfig, TrainState]:
        """The model and the state after the cut of a step, whose batch was `tokens`."""
        chosen = model.head_output
        assert isinstance(chosen, DynamicRankConfig)
        build = lambda model: self._program(model).transformer
        like = lambda model: self._program(model).state_like()
        final = step == chosen.cut_step(self.config.training.steps)
        host = self.of(model).program.gathered(state)
        new, cut = rank_cut.cut(build, model, host, like, tokens, final=final, seed=self.config.seed)
        if several():  # hosts of different kinds round differently, and have to go on with one state
            assert isinstance(new.head_output, DynamicRankConfig)
            ranks, fixed = agreed((new.head_output.all_ranks(new), new.head_output.method.kind == "fixed"))
            new = rank_cut.with_ranks(model, tuple(map(tuple, ranks)), fixed=fixed)
            leaves, structure = jax.tree.flatten(like(new))
            cut = jax.tree.unflatten(structure, from_first(jax.tree.leaves(cut), leaves))
        return new, self.of(new).program.placed(cut)

    def _program(self, model: ModelConfig) -> Program:
        return make_program(self.config.model_copy(update={"model": model}), self.corpus.tokenizer.vocab_size)

    def _make(self, program: Program) -> Stage:
        evaluate, parts = program.evaluate(), program.parts_of_batch
        room = room_of(self.config.training)
        splits, context = self.corpus.splits, self.config.model.context
        ask = make_task_evaluator(program.apply, splits["train"].tokens, context)
        measure = make_diagnostics(program.transformer)
        decay = effective_decay(self.config, program.transformer)
        read = lambda state: state._replace(params={}, memory={})  # all that decay reads
        return Stage(
            program,
            room,
            compiling(program.dispatch(room)),
            make_evaluator(evaluate, splits["validation"], context, parts),
            make_evaluator(evaluate, splits["test"], context, parts) if "test" in splits else None,
            Compiling(lambda params, seed: ask(program.gathered(params), seed), ask.compile),
            Compiling(lambda params: measure(program.gathered(params)), measure.compile),
            Compiling(
                lambda state, numbers: decay(program.gathered(read(state)), numbers),
                lambda state, numbers: decay.compile(read(state), numbers),
            ),
        )


def room_of(training: TrainingConfig) -> int:
    """Steps that one dispatch has room for."""
    per_dispatch = min(training.steps_per_dispatch, training.steps)
    return max(per_dispatch, 2)  # with room for one, XLA drops the loop: another program, which rounds otherwise


def cut_steps(config: RunConfig) -> tuple[int, ...]:
    """The steps after which the model changes its shape."""
    chosen = config.model.head_output
    if not isinstance(chosen, DynamicRankConfig) or chosen.total_rank is None:
        return ()
    return (*chosen.compact_at, chosen.cut_step(config.training.steps))


def _layout(model: ModelConfig) -> Any:
    """What two models of one run have in common if they are one program."""
    chosen = model.head_output
    if not isinstance(chosen, DynamicRankConfig):
        return None
    group = model.n_heads // model.kv_heads
    return chosen.method.kind, *(RankLayout.of(ranks, chosen.bucket, group) for ranks in chosen.all_ranks(model))

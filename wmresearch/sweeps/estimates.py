"""What a run will take before it is run: FLOPs and bytes from shapes, time from steps that are really made."""

from __future__ import annotations

import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from wmresearch.config import RunConfig
from wmresearch.data import load_corpus, symbols_of
from wmresearch.model.cost import TRAINING_FACTOR
from wmresearch.sweeps.budgets import Budgets, final_model
from wmresearch.training.program import make_program
from wmresearch.training.runtime import prepare_runtime
from wmresearch.training.stage import room_of
from wmresearch.training.step import make_dispatch

_AROUND_A_CHECKPOINT = 100_000
"""Bytes that a checkpoint has beside its arrays."""
_METRICS_LINE = 160
_HEAD_LINE = 250
"""Bytes of a line of metrics, and of one head in a line of diagnostics with its part of a file of spectra."""


@dataclass(frozen=True)
class RunEstimate:
    """What one run takes."""

    parameters: int
    head_output_parameters: int
    flops: float
    """Of all its training steps."""
    bytes: int
    """On disk: the checkpoints that are kept, and logs."""
    seconds: float | None
    """Training and evaluation, without start and compilation; None where no step was measured."""


def estimate_run(config: RunConfig, budgets: Budgets, seconds_per_step: float | None = None) -> RunEstimate:
    """What a run takes; `seconds_per_step` as `measured_step` finds it."""
    cost, flops = budgets.cost(config, final_model(config.model)), budgets.spent(config, "flops")
    steps, evaluate_every = config.training.steps, config.training.evaluate_every
    seconds = None
    if seconds_per_step is not None:
        tokens = {name: split.tokens.size for name, split in load_corpus(config.data).splits.items()}
        evaluated = _times(steps, evaluate_every) * tokens["validation"] + tokens.get("test", 0)
        per_token = seconds_per_step / (config.data.batch_size * config.model.context)
        seconds = steps * seconds_per_step + evaluated * per_token / TRAINING_FACTOR
    return RunEstimate(cost.parameters, cost.head_output_parameters, flops, _bytes(config), seconds)


def measured_step(config: RunConfig) -> float:
    """Seconds of one step of a run's compiled program, here and now; the third of three calls is timed."""
    prepare_runtime(config)
    symbols = symbols_of(config.data)
    program = make_program(config, symbols)
    room = room_of(config.training)
    draw = np.random.default_rng(0)
    tokens = jnp.asarray(draw.integers(0, symbols, (room, config.data.batch_size, config.model.context + 1)), jnp.int32)
    state, dispatch, took = program.initial_state(), make_dispatch(program.step, room), 0.0
    for _ in range(3):
        started = time.perf_counter()
        state, metrics = dispatch(state, tokens, room, program.given())
        jax.block_until_ready((state, metrics))
        took = time.perf_counter() - started
    return took / room


def _bytes(config: RunConfig) -> int:
    training, model = config.training, config.model
    program = make_program(config.model_copy(update={"parallel": type(config.parallel)()}), symbols_of(config.data))
    state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(program.state_like()) if _stored(leaf))
    kept = min(training.keep, _times(training.steps, training.checkpoint_every))
    evaluations = _times(training.steps, training.evaluate_every)
    logs = training.steps // training.log_every * _METRICS_LINE
    if training.diagnostics:
        logs += (evaluations + 1) * model.n_layers * model.n_heads * _HEAD_LINE
    return (state + _AROUND_A_CHECKPOINT) * kept + logs


def _stored(leaf: object) -> bool:
    return hasattr(leaf, "size") and jnp.issubdtype(leaf.dtype, np.number)  # type: ignore[attr-defined]


def _times(steps: int, every: int | None) -> int:
    """How often something is done that the last step always has."""
    return 1 if every is None else -(-steps // every)

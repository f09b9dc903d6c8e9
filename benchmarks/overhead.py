"""What a run spends beside its steps: data, logging, evaluation's diagnostics, penalties; of runs of 1,000 steps.

    python benchmarks/overhead.py [--rounds N] [--steps N] [--out benchmarks/results/overhead.md]

A run is made by `training.loop.train` in a fresh folder, W&B offline included, and timed from the end of its first
dispatch to its evaluation, which is after the last. The bare loop calls the same compiled program on one batch, over
and over. All take turns; ratios are medians over rounds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from page import load, measured_by, put_out

from wmresearch.config import RunConfig, parse_run
from wmresearch.data import load_corpus
from wmresearch.training import loop, program, stage
from wmresearch.training.diagnostics import make_diagnostics
from wmresearch.training.evaluation import make_evaluator
from wmresearch.training.program import make_program
from wmresearch.training.runtime import prepare_runtime
from wmresearch.training.step import make_dispatch

SMALL = {"d_model": 128, "n_layers": 4, "n_heads": 4, "context": 64}, 12
LARGE = {"d_model": 256, "n_layers": 4, "n_heads": 8, "context": 256}, 8
PENALTIES = ("nuclear", "frobenius", "head_overlap")
PENALTY_STEPS, EVERY = 48, 100


def run_config(shape: tuple[dict[str, int], int], steps: int, penalties: tuple[str, ...] = ()) -> RunConfig:
    model, batch = shape
    return parse_run(
        {
            "model": {**model, "mlp": "gelu_tanh"},
            "data": {"corpus": "stdlib/small", "tokenizer": "byte", "batch_size": batch},
            "optimizer": {"learning_rate": 1e-3},
            "penalties": [{"kind": kind, "strength": 1e-4} for kind in penalties],
            "training": {"steps": steps, "diagnostics": False},
            "tracking": {"wandb": {"mode": "offline"}},
        },
        "benchmark",
    )


def described(shape: tuple[dict[str, int], int]) -> str:
    model, batch = shape
    return f"d {model['d_model']}, {model['n_layers']} layers, {model['n_heads']} heads, {batch} × {model['context']}"


def trained(config: RunConfig) -> float:
    """Seconds of a run from the end of its first dispatch to its evaluation, which is after the last."""
    marks: list[float] = []

    def timed_dispatch(step: Any, size: int) -> Any:
        dispatch = make_dispatch(step, size)

        def call(*arguments: Any) -> Any:
            out = dispatch(*arguments)
            if not marks:
                jax.block_until_ready(out)
                marks.append(time.perf_counter())
            return out

        return call

    def timed_evaluator(*arguments: Any) -> Any:
        evaluate = make_evaluator(*arguments)

        def call(params: Any) -> Any:
            marks.append(time.perf_counter())
            return evaluate(params)

        return call

    with tempfile.TemporaryDirectory() as folder:
        program.make_dispatch, stage.make_evaluator = timed_dispatch, timed_evaluator
        try:
            loop.train(config, Path(folder) / "run")
        finally:
            program.make_dispatch, stage.make_evaluator = make_dispatch, make_evaluator
    return marks[1] - marks[0]


def diagnosed(config: RunConfig, vocab: int) -> float:
    """Seconds of one evaluation's diagnostics, as a median."""
    made = make_program(config, vocab)
    measure, params = make_diagnostics(made.transformer), made.initial_state().params
    times = []
    for _ in range(8):
        started = time.perf_counter()
        measure(params)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def bare(config: RunConfig, vocab: int) -> float:
    """Seconds of as many steps on one batch, after the first call."""
    made, room = make_program(config, vocab), config.training.steps_per_dispatch
    dispatch, state = make_dispatch(made.step, room), made.initial_state()
    shape = (room, config.data.batch_size, config.model.context + 1)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, vocab, shape), jnp.int32)
    started, left = 0.0, config.training.steps
    while left:
        n = min(room, left)
        state, metrics = dispatch(state, tokens, n, made.given())
        jax.block_until_ready((state, metrics))
        started, left = started or time.perf_counter(), left - n
    return time.perf_counter() - started


def table(name: str, contestants: dict[str, Callable[[], float]], rounds: int) -> tuple[list[str], float]:
    """Seconds beside those of the bare loop; and those."""
    times: dict[str, list[float]] = {each: [] for each in contestants}
    for _ in range(rounds):
        for each, measure in contestants.items():
            times[each].append(measure())
    lines = [f"## {name}", "", "| | s, median (least–most) | time / bare loop |", "| --- | ---: | ---: |"]
    for each, found in times.items():
        ratio = statistics.median(a / b for a, b in zip(found, times["bare loop"], strict=True))
        lines.append(f"| {each} | {statistics.median(found):.1f} ({min(found):.1f}–{max(found):.1f}) | {ratio:.3f} |")
    return [*lines, ""], statistics.median(times["bare loop"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path, help="also write the Markdown to this file")
    options = parser.parse_args()
    page = ["# What a run spends beside its steps", ""]
    page += [f"{measured_by('overhead.py')}, {options.rounds} rounds.", load(), ""]
    small, large = run_config(SMALL, options.steps), run_config(LARGE, PENALTY_STEPS)
    prepare_runtime(small)
    vocab = load_corpus(small.data, lambda _: None).tokenizer.vocab_size
    runs = {
        "bare loop": lambda: bare(small, vocab),
        "run: with data, logging and W&B offline": lambda: trained(small),
    }
    page += table(f"{options.steps:,} steps, {described(SMALL)}", runs, options.rounds)[0]
    with_penalties = {"bare loop": lambda: bare(large, vocab)}
    for kind in PENALTIES:
        penalized = run_config(LARGE, PENALTY_STEPS, (kind,))
        with_penalties[f"with penalty {kind}"] = partial(bare, penalized, vocab)
    lines, seconds = table(f"{PENALTY_STEPS} steps, {described(LARGE)}", with_penalties, options.rounds)
    once, between = diagnosed(large, vocab), seconds / (PENALTY_STEPS - large.training.steps_per_dispatch) * EVERY
    page += [*lines, f"Diagnostics take {1e3 * once:.0f} ms an evaluation: {once / between:.2%} of {EVERY} steps."]
    put_out(page, options.out)


if __name__ == "__main__":
    main()

"""Do the methods find ranks that are known? Copying through channels of unequal rank, one head for each.

    python experiments/q06_rank_allocation/recovery.py [--seeds N] [--out results/q06_rank_allocation/recovery.md]

One layer of heads whose attention is given (head i reads the token i before), `dynamic_rank` in full, trained by Adam
on `data.tasks.Channels`; the methods, the cut and the step are those of training. What a model loses to the true maps
is computed from its maps, without sampling. After the cut what is not kept stays as zeros: all cuts share a program.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from scipy.stats import spearmanr

from wmresearch.config.dynamic_rank import DynamicRankConfig
from wmresearch.config.model import ModelConfig
from wmresearch.config.optimizer import AdamWConfig, LinearSchedule
from wmresearch.data.tasks import Channels
from wmresearch.head_output import make_head_output
from wmresearch.head_output.weights import Constant, buffer, initialize
from wmresearch.training import rank_cut
from wmresearch.training.optimizers import make_optimizer, make_schedule
from wmresearch.training.parameters import parameter_facts, trained
from wmresearch.training.randomness import Purpose, purpose_key
from wmresearch.training.rank_training import make_budget, make_draw, make_expected_rank
from wmresearch.training.step import Keys, Parts, Step, TrainState, make_state, make_step, together

RANKS = (12, 1, 4, 2, 8, 1, 6, 3)
WIDTH, FULL, CONTEXT, BATCH = 32, 16, 40, 16
STEPS, FINE_TUNE, CHUNK, RATE = 2000, 500, 100, 3e-3
TOTALS = (18, 28, 33, 37, 41, 46, 56, 74, 96)
METHODS = ("hard_concrete", "budgeted", "nested", "energy", "random", "uniform")
MARGIN = 0.01


class Layer(nnx.Module):
    """Heads whose attention is given, in the place that a transformer has them in."""

    def __init__(self, model: ModelConfig) -> None:
        self.attention = nnx.Module()
        self.attention.head_output = make_head_output(model)
        self.attention_norm = nnx.Module()
        self.attention_norm.gain = buffer((model.d_model,), Constant(1.0), model.param_dtype)


class Channeled(nnx.Module):
    """One such layer."""

    def __init__(self, model: ModelConfig) -> None:
        self.blocks = nnx.List([Layer(model)])


@dataclass(frozen=True)
class Training:
    """The step of one method, and how its state starts."""

    model: ModelConfig
    module: Channeled
    step: Step
    start: Callable[[int], TrainState]
    keys: Callable[[int], Keys]
    run: Callable[[TrainState, Any, Keys], TrainState]


def model_of(method: str, total: int | None) -> ModelConfig:
    found = {} if method == "fixed" else {"total_rank": total, "fine_tune_steps": FINE_TUNE}
    config = DynamicRankConfig(rank=FULL, method={"kind": method}, bucket=FULL, bias=False, **found)
    return ModelConfig(d_model=WIDTH, n_layers=1, n_heads=len(RANKS), context=CONTEXT, head_output=config)


def make_training(model: ModelConfig, task: Channels) -> Training:
    module, chosen = Channeled(model), model.head_output
    assert isinstance(chosen, DynamicRankConfig)
    graph, _ = nnx.split(module)
    shifts = jnp.asarray(task.attention(), jnp.float32)
    reached = len(RANKS) - 1

    def mix(value: jax.Array, heads: slice = slice(None), /) -> jax.Array:
        return jnp.einsum("hts,bshr->bthr", shifts[heads], value)

    def loss(params: Any, batch: Any, key: Any, rows: Any) -> Any:
        del key, rows
        x, y = batch[:, 0], batch[:, 1]
        guess = nnx.merge(graph, params).blocks[0].attention.head_output(x, mix)
        nats = jnp.square(y - guess)[:, reached:].sum(axis=-1).mean() / (2 * task.noise**2)
        return nats, {"train_loss": nats}

    config = AdamWConfig(learning_rate=RATE, weight_decay=0.0, schedule=LinearSchedule(warmup=50, final=0.02))
    optimizer = make_optimizer(config, STEPS, parameter_facts(module))
    expected, budget = make_expected_rank(chosen, module, STEPS), make_budget(chosen, module, STEPS)
    draw, penalties = make_draw(chosen, module), [expected] if expected else []
    parts = Parts(
        draw=draw,
        penalties=together(*penalties),
        after=(budget,) if budget else (),
        trained=trained(module),
    )
    step = make_step(loss, optimizer, make_schedule(config.schedule, RATE, STEPS), parts)

    def state_at(params: Any) -> TrainState:
        memory = {name: kept for penalty in penalties for name, kept in penalty.start(params).items()}
        return make_state(params, optimizer, parts.trained, memory)

    @jax.jit
    def run(state: TrainState, batches: Any, keys: Keys) -> TrainState:
        return jax.lax.scan(lambda state, batch: (step(state, batch, keys)[0], None), state, batches)[0]

    return Training(
        model,
        module,
        step,
        lambda seed: state_at(initialize(module, purpose_key(seed, Purpose.INITIALIZATION))),
        lambda seed: Keys(ranks=purpose_key(seed, Purpose.RANKS) if draw else None),
        run,
    )


def batches(task: Channels) -> list[Any]:
    """All of a run, in chunks, in float32."""
    chunks = []
    for first in range(0, STEPS, CHUNK):
        pairs = [task.batch(step, BATCH) for step in range(first, first + CHUNK)]
        chunks.append(jnp.asarray(np.stack([np.stack(pair, axis=1) for pair in pairs]), jnp.float32))
    return chunks


def cost(training: Training, state: TrainState, task: Channels) -> float:
    """Nats a token above the true maps."""
    output = nnx.merge(nnx.split(training.module)[0], state.params).blocks[0].attention.head_output
    return task.cost_of(np.asarray(output.factors().dense(), float))


def explored(seed: int, fixed: Training, made: Callable[[str, int | None], Training]) -> dict[str, Any]:
    """The cost of all directions, and of each method at each total with the ranks that it found."""
    task = Channels(WIDTH, RANKS, CONTEXT, seed)
    data, cut_at = batches(task), STEPS - FINE_TUNE

    def before(training: Training) -> TrainState:
        state = training.start(seed)
        for chunk in data[: cut_at // CHUNK]:
            state = training.run(state, chunk, training.keys(seed))
        return state

    def after(state: TrainState) -> TrainState:
        for chunk in data[cut_at // CHUNK :]:
            state = fixed.run(state, chunk, Keys())
        return state

    plain = before(fixed)
    found: dict[str, Any] = {"full": cost(fixed, after(plain), task), "methods": {}}
    for method in METHODS:
        at_any_total = plain if method in ("energy", "random", "uniform") else None
        for total in TOTALS:
            training = made(method, total)
            if at_any_total is None or method in ("hard_concrete", "budgeted"):
                at_any_total = before(training)
            keep, ranks = kept(training, at_any_total, fixed, seed)
            entry = {"cost": cost(fixed, after(keep), task), "ranks": ranks}
            found["methods"].setdefault(method, {})[total] = entry
            print(f"seed {seed} {method} {total}: {entry['cost']:.4f} {ranks}", flush=True)
    return found


def kept(training: Training, state: TrainState, fixed: Training, seed: int) -> tuple[TrainState, list[int]]:
    """The state after the cut, what is not kept as zeros; and the ranks."""
    build = Channeled
    like = lambda model: make_training(model, Channels(WIDTH, RANKS, CONTEXT, seed)).start(0)
    tokens = np.zeros((1, 1), np.int32)
    model, small = rank_cut.cut(build, training.model, state, like, tokens, final=True, seed=seed)
    chosen = model.head_output
    assert isinstance(chosen, DynamicRankConfig)
    (ranks,) = chosen.all_ranks(model)
    return spread(small, build(model), fixed.start(0)), list(ranks)


def spread(small: TrainState, module: Channeled, like: TrainState) -> TrainState:
    """A compacted state back in the arrays of all heads, in the same order, zero elsewhere. (Widths are all `FULL`.)"""
    heads = np.array(module.blocks[0].attention.head_output.layout.heads)
    places = (heads[:, None] * FULL + np.arange(FULL)).ravel()

    def put(leaf: Any, whole: Any) -> Any:
        if leaf.shape == whole.shape:
            return leaf
        axis = next(i for i, (a, b) in enumerate(zip(leaf.shape, whole.shape, strict=True)) if a != b)
        out = np.full(whole.shape, -1 if whole.dtype == jnp.int32 else 0, whole.dtype)
        out[(slice(None),) * axis + (places,)] = np.asarray(leaf)
        return jnp.asarray(out)

    return jax.tree.map(put, small, like)


def page(found: list[dict[str, Any]]) -> list[str]:
    """The tables."""
    truth, listed = sum(RANKS), ", ".join(map(str, RANKS))
    full = _mean([each["full"] for each in found])
    lines = [
        "# Recovery of known ranks",
        "",
        f"Channels of rank {listed} (total {truth}), one head each, of {FULL} directions at first; width {WIDTH},",
        f"{STEPS} steps, the last {FINE_TUNE} after the cut. {len(found)} seeds.",
        f"With all {len(RANKS) * FULL} directions: {full} nats a token above the true maps.",
        "",
        f"Nats a token above all directions, by total rank (mean over seeds); bold: within {MARGIN} in every seed.",
        "",
        "| method | " + " | ".join(map(str, TOTALS)) + " | smallest total within | rank correlation at the truth |",
        "| --- |" + " ---: |" * (len(TOTALS) + 2),
    ]
    for method in METHODS:
        cells, smallest = [], []
        for total in TOTALS:
            excess = [each["methods"][method][total]["cost"] - each["full"] for each in found]
            text = f"{statistics.mean(excess):+.3f}"
            cells.append(f"**{text}**" if max(excess) <= MARGIN else text)
        for each in found:
            within = [t for t in TOTALS if each["methods"][method][t]["cost"] - each["full"] <= MARGIN]
            smallest.append(str(min(within)) if within else "none")
        correlations = [spearmanr(each["methods"][method][truth]["ranks"], RANKS).statistic for each in found]
        said = ", ".join("–" if np.isnan(value) else f"{value:.2f}" for value in correlations)
        lines.append(f"| {method} | {' | '.join(cells)} | {', '.join(smallest)} | {said} |")
    return [*lines, "", "Smallest totals and correlations (Spearman) by seed."]


def _mean(values: list[float]) -> str:
    return f"{statistics.mean(values):.4f} ({min(values):.4f} to {max(values):.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    task = Channels(WIDTH, RANKS, CONTEXT)

    @cache
    def made(method: str, total: int | None) -> Training:
        return make_training(model_of(method, total), task)

    found = [explored(seed, made("fixed", None), made) for seed in range(options.seeds)]
    text = "\n".join(page(found)) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
        options.out.with_suffix(".json").write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

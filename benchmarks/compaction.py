"""What heads gain in speed when directions leave them: the head outputs alone, and a whole training step.

    python benchmarks/compaction.py [--rounds N] [--out benchmarks/results/compaction.md]

Half of all directions are there: of every head, of heads of unequal ranks, or all of half the heads. The head outputs
alone read, mix by attention that is given, and write, with gradients by all of these. All take turns; times are medians
over rounds after a first call that compiles, ratios those of one round.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from page import load, measured_by, put_out, spread
from train_step import VOCAB, measure, our_config, ours

from wmresearch.config.model import ModelConfig
from wmresearch.head_output import make_head_output
from wmresearch.head_output.orders import query_blocks
from wmresearch.head_output.weights import abstract_params, initialize
from wmresearch.model.cost import TRAINING_FACTOR, model_cost

SHAPE = {"d_model": 512, "n_layers": 2, "n_heads": 8, "context": 512, "batch": 4}
STEPS = 4
RANKS = {
    "rank 64 of each head": [64] * 8,
    "rank 32 of each head": [32] * 8,
    "ranks 64, 56, 48, 32, 24, 16, 8, 8": [64, 56, 48, 32, 24, 16, 8, 8],
    "rank 64 of half of the heads": [64] * 4 + [0] * 4,
}


def head_output(ranks: list[int]) -> dict[str, Any]:
    return {"kind": "dynamic_rank", "ranks": [ranks] * SHAPE["n_layers"]}


def head_output_alone(model: ModelConfig) -> Callable[[], None]:
    """Value and gradients of one layer's head output, so many times in one call."""
    module = make_head_output(model)
    graph, _ = nnx.split(module)
    params = initialize(module, jax.random.key(0))
    b, t, d, h = SHAPE["batch"], SHAPE["context"], SHAPE["d_model"], len(module.layout.query_heads)
    draw = np.random.default_rng(0)
    x = jnp.asarray(draw.standard_normal((b, t, d)), jnp.float32)
    rows = [jnp.asarray(draw.random((b, h, end - start, end)), jnp.float32) for start, end in query_blocks(t)]

    def loss(params: Any, x: Any, rows: Any) -> Any:
        def mix(value: Any, heads: slice = slice(None), /) -> Any:
            by_head = jnp.swapaxes(value, 1, 2)
            ends = [end for _, end in query_blocks(t)]
            mixed = [p[:, heads] @ by_head[:, :, :end] for p, end in zip(rows, ends, strict=True)]
            return jnp.swapaxes(jnp.concatenate(mixed, axis=2), 1, 2)

        return jnp.square(nnx.merge(graph, params)(x, mix)).mean()

    floats = {name: leaf for name, leaf in params.items() if leaf.dtype == jnp.float32}
    rest = {name: leaf for name, leaf in params.items() if name not in floats}
    slopes = jax.grad(lambda own, x, rows: loss(own | rest, x, rows), argnums=(0, 1, 2))

    @jax.jit
    def many(own: Any, x: Any, rows: Any) -> Any:
        step = lambda _, at: jax.tree.map(lambda leaf, slope: leaf - 1e-6 * slope, at, slopes(*at))
        return jax.lax.fori_loop(0, STEPS, step, (own, x, rows))

    return lambda: jax.block_until_ready(many(floats, x, rows))


def ratios(times: dict[str, list[float]], flops: dict[str, float]) -> list[str]:
    """Rows beside the first contestant: time, predicted time, share of the predicted saving."""
    first = next(iter(times))
    lines = []
    for name, found in times.items():
        ratio = statistics.median(a / b for a, b in zip(found, times[first], strict=True))
        predicted = flops[name] / flops[first]
        saved = "–" if name == first else f"{(1 - ratio) / (1 - predicted):.0%}"
        lines.append(f"| {name} | {spread(found)} | {ratio:.3f} | {predicted:.3f} | {saved} |")
    return lines


def table(title: str, times: dict[str, list[float]], flops: dict[str, float]) -> list[str]:
    return [
        f"## {title}",
        "",
        "| | ms (middle half) | time / all directions | operations / all directions | of the saving predicted |",
        "| --- | ---: | ---: | ---: | ---: |",
        *ratios(times, flops),
        "",
    ]


def compiled_flops(model: ModelConfig) -> float:
    """Operations of a forward and backward pass that XLA counts in a program of one attention layer."""
    from wmresearch.model.attention import Attention

    module = Attention(model)
    graph, _ = nnx.split(module)
    params = abstract_params(module)
    x = jax.ShapeDtypeStruct((SHAPE["batch"], SHAPE["context"], SHAPE["d_model"]), jnp.float32)
    loss = lambda params, x: jnp.square(nnx.merge(graph, params)(x)).mean()
    return jax.jit(jax.grad(loss, argnums=(0, 1), allow_int=True)).lower(params, x).cost_analysis()["flops"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="also write the Markdown to this file")
    options = parser.parse_args()
    configs = {name: our_config(SHAPE, head_output(ranks)) for name, ranks in RANKS.items()}
    tokens = np.random.default_rng(0).integers(0, VOCAB, (STEPS, SHAPE["batch"], SHAPE["context"] + 1), np.int32)
    shape = f"d {SHAPE['d_model']}, {SHAPE['n_heads']} heads, {SHAPE['batch']} × {SHAPE['context']}"
    page = ["# Heads that lost half of their directions", ""]
    page += [f"{measured_by('compaction.py')}, {options.rounds} rounds. {shape}.", load(), ""]

    costs = {name: model_cost(config.model, VOCAB) for name, config in configs.items()}
    alone = {name: head_output_alone(config.model) for name, config in configs.items()}
    flops = {name: cost.parts[2].forward_flops_per_token for name, cost in costs.items()}
    page += table("Head outputs alone, forward and backward", measure(alone, options.rounds, STEPS), flops)

    steps = {name: ours(config, tokens) for name, config in configs.items()}
    flops = {name: cost.training_flops_per_token for name, cost in costs.items()}
    title = f"A training step, {SHAPE['n_layers']} layers"
    page += table(title, measure(dict(steps), options.rounds, STEPS), flops)

    counted = {name: compiled_flops(config.model) / 1e9 for name, config in configs.items()}
    tokens_of_step = SHAPE["batch"] * SHAPE["context"]
    page += ["## Operations of one attention layer, forward and backward, GFLOP", ""]
    page += ["| | as XLA counts them | as the cost model says |", "| --- | ---: | ---: |"]
    for name, cost in costs.items():
        said = TRAINING_FACTOR * tokens_of_step * sum(part.forward_flops_per_token for part in cost.parts[1:3])
        page.append(f"| {name} | {counted[name]:.2f} | {said / SHAPE['n_layers'] / 1e9:.2f} |")
    put_out(page, options.out)


if __name__ == "__main__":
    main()

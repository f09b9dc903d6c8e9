"""Time of a training step on one and on two devices of a CPU, and what they exchange beside the least they have to.

    python benchmarks/parallel.py [--rounds N] [--out benchmarks/results/parallel.md]

Two virtual devices share the machine's cores, so two are no faster than one at best: what is seen is what dividing the
work costs. Times are medians over rounds in which all take turns. The least is counted from the model's figures: with
b·t tokens a device, each layer adds a d-vector a token in attention and in the MLP, forward and backward, and so do the
embedding (forward) and the logits (backward), which also exchange three numbers a token; over the data axis the
gradient of a device's parameters.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2".strip()

import jax
import numpy as np
from page import load, measured_by, put_out

from wmresearch.config import RunConfig, parse_run
from wmresearch.reports.mesh import step_collectives
from wmresearch.training.program import make_program
from wmresearch.training.step import make_dispatch

VOCAB = 256
SIZES = {
    "small": ({"d_model": 256, "n_layers": 4, "n_heads": 8, "context": 256}, 8),
    "tiny": ({"d_model": 16, "n_layers": 1, "n_heads": 2, "context": 16}, 4),
}
WAYS: dict[str, dict[str, Any]] = {
    "one device": {},
    "data 2, shard_map": {"mesh": {"data": 2}},
    "data 2, jit": {"mesh": {"data": 2}, "implementation": "jit"},
    "head 2, shard_map": {"mesh": {"head": 2}},
    "head 2, jit": {"mesh": {"head": 2}, "implementation": "jit"},
    "head 2, shard_map, positions divided": {"mesh": {"head": 2}, "shard_positions": True},
}


def run_config(size: str, way: str) -> RunConfig:
    model, batch = SIZES[size]
    config = {
        "model": {**model, "mlp": "gelu_tanh"},
        "data": {"corpus": "stdlib/small", "tokenizer": "byte", "batch_size": batch},
        "optimizer": {"learning_rate": 1e-3},
        "parallel": WAYS[way],
        "training": {"steps": 1000},
    }
    return parse_run(config, "benchmark")


def least(size: str, way: str, parameters: int) -> int:
    """Numbers that a device has to exchange in a step."""
    model, batch = SIZES[size]
    mesh = WAYS[way].get("mesh", {})
    if "head" in mesh:
        return batch * model["context"] * (model["d_model"] * (4 * model["n_layers"] + 2) + 3)
    return parameters if mesh else 0


def exchanged(size: str, way: str) -> int:
    """Numbers that a device does exchange in one step; those of the gradient's norm and the mean loss left out.

    A number in a reduce-scatter or an all-gather counts half: an all-reduce is one and then the other.
    """
    config = run_config(size, way)
    mesh = config.parallel.mesh
    if mesh is None:
        return 0
    found = 0.0
    for each in step_collectives(config, VOCAB):
        whole = sum(array.numbers for array in each.arrays if array.shape) * (each.axes != ())
        if each.kind == "reduce-scatter":  # returns one part
            whole *= int(mesh.head)
        found += whole if each.kind == "all-reduce" else whole / 2
    return round(found)


def page(size: str, rounds: int, began: str) -> list[str]:
    calls, parameters = {}, 0
    for way in WAYS:
        program = make_program(run_config(size, way), VOCAB)
        state = program.placed(program.initial_state())
        parameters = sum(leaf.size for leaf in jax.tree.leaves(program.state_like().params))
        stream = np.random.default_rng(0).integers(0, VOCAB, (1, SIZES[size][1], SIZES[size][0]["context"] + 1))
        tokens = stream.astype(np.int32)
        calls[way] = [make_dispatch(program.step, 1) if program.arrangement is None else program.dispatch(1),
                      (state, tokens, 1, program.given())]  # fmt: skip
    numbers = {way: exchanged(size, way) for way in WAYS}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds + 1):
        for way, (dispatch, (state, tokens, n, keys)) in calls.items():
            started = time.perf_counter()
            state, _ = jax.block_until_ready(dispatch(state, tokens, n, keys))
            times[way].append(time.perf_counter() - started)
            calls[way][1] = (state, tokens, n, keys)
    model, batch = SIZES[size]
    shape = f"d {model['d_model']}, {model['n_layers']} layers, {model['n_heads']} heads, {batch} × {model['context']}"
    shape += f" tokens a step, {parameters:,} parameters."
    lines = [
        "# Several devices",
        "",
        f"Measured by {measured_by('parallel.py')}. {began} {rounds} rounds after one of warm-up.",
        "",
        shape,
        "",
        "| devices | ms a step | time / one device | numbers exchanged a step | least | ratio |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for way in WAYS:
        ratio = statistics.median(a / b for a, b in zip(times[way][1:], times["one device"][1:], strict=True))
        wanted = least(size, way, parameters)
        share = f"{numbers[way] / wanted:.2f}" if wanted else ""
        median = 1e3 * statistics.median(times[way][1:])
        lines.append(f"| {way} | {median:.1f} | {ratio:.2f} | {numbers[way]:,} | {wanted:,} | {share} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    put_out(page(options.size, options.rounds, load()), options.out)


if __name__ == "__main__":
    main()

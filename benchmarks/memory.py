"""Peak memory and time of a training step under each way of `execution`, and with momentum in bfloat16.

    python benchmarks/memory.py [--rounds N] [--out benchmarks/results/memory.md]

Memory is that of the compiled program: arguments (the state, donated) and what is held between. Times are medians over
rounds in which all take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from page import load, measured_by, put_out

from wmresearch.config import RunConfig, parse_run
from wmresearch.reports.bench import held
from wmresearch.training.program import make_program
from wmresearch.training.step import make_dispatch

STEPS = 2
SHAPES = {
    "deep: 12 layers, d 128, 4 heads, 8 × 256, vocabulary 256": (
        {"d_model": 128, "n_layers": 12, "n_heads": 4, "context": 256}, 8, 256,
    ),
    "wide vocabulary: 2 layers, d 128, 4 heads, 8 × 256, vocabulary 50304": (
        {"d_model": 128, "n_layers": 2, "n_heads": 4, "context": 256}, 8, 50304,
    ),
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "remat: products": {"execution": {"remat": "products"}},
    "remat: layers": {"execution": {"remat": "layers"}},
    "scan_layers: true": {"execution": {"scan_layers": True}},
    "scan_layers: true, remat: layers": {"execution": {"scan_layers": True, "remat": "layers"}},
    "logits_block: 256": {"execution": {"logits_block": 256}},
    "momentum_dtype: bfloat16": {"optimizer": {"momentum_dtype": "bfloat16"}},
    "remat: layers, logits_block: 256, momentum_dtype: bfloat16": {
        "execution": {"remat": "layers", "logits_block": 256}, "optimizer": {"momentum_dtype": "bfloat16"},
    },
}  # fmt: skip


def run_config(model: dict[str, Any], batch: int, way: dict[str, Any]) -> RunConfig:
    return parse_run(
        {
            "model": {**model, "mlp": "gelu_tanh"},
            "data": {"corpus": "stdlib/small", "tokenizer": "byte", "batch_size": batch},
            "optimizer": {"learning_rate": 1e-3} | way.get("optimizer", {}),
            "execution": way.get("execution", {}),
            "training": {"steps": 1000},
        },
        "benchmark",
    )


def table(name: str, rounds: int) -> list[str]:
    """One shape as Markdown."""
    model, batch, vocab = SHAPES[name]
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, vocab, (STEPS, batch, model["context"] + 1)), jnp.int32)
    compiled, states, seconds, calls = {}, {}, {}, {}
    for way, change in WAYS.items():
        program = make_program(run_config(model, batch, change), vocab)
        states[way], keys = program.initial_state(), program.given()
        started = time.perf_counter()
        compiled[way] = make_dispatch(program.step, STEPS).lower(states[way], tokens, STEPS, keys).compile()
        seconds[way] = time.perf_counter() - started
        calls[way] = keys
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds + 1):
        for way, call in compiled.items():
            started = time.perf_counter()
            states[way], _metrics = call(states[way], tokens, STEPS, calls[way])
            jax.block_until_ready(states[way])
            times[way].append((time.perf_counter() - started) / STEPS)
    lines = [
        f"## {name}",
        "",
        "| way | state, MiB | between, MiB | peak, MiB | peak / default | ms a step | time / default | compile, s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    mib = lambda size: size / 2**20
    peaks = {}
    for way, call in compiled.items():
        state, peaks[way] = call.memory_analysis().argument_size_in_bytes, held(call)
        step = statistics.median(times[way][1:])
        ratio = statistics.median(a / b for a, b in zip(times[way][1:], times["default"][1:], strict=True))
        lines.append(
            f"| {way} | {mib(state):,.0f} | {mib(peaks[way] - state):,.0f} | {mib(peaks[way]):,.0f} | "
            f"{peaks[way] / peaks['default']:.2f} | {1e3 * step:.0f} | {ratio:.2f} | {seconds[way]:.1f} |"
        )
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="also write the Markdown to this file")
    options = parser.parse_args()
    page = ["# Memory of a training step", "", f"{measured_by('memory.py')}, {options.rounds} rounds.", load(), ""]
    for name in SHAPES:
        page += table(name, options.rounds)
    put_out(page, options.out)


if __name__ == "__main__":
    main()

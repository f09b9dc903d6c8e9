"""How fast a model trains on this machine, as a share of what a plain matrix product reaches in the same minutes.

The matrix product and the training step take turns, so that whatever else the machine does slows both of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wmresearch.config import RunConfig
from wmresearch.data import symbols_of
from wmresearch.model.cost import TRAINING_FACTOR, model_cost
from wmresearch.training.manifest import device_name
from wmresearch.training.program import make_program
from wmresearch.training.runtime import prepare_runtime
from wmresearch.training.step import make_dispatch

_PRODUCT_SIZE = {"cpu": 2048}
"""Rows of the square matrices whose product is timed; 8192 on accelerators."""


def model_flops_per_step(config: RunConfig, vocab_size: int) -> float:
    """6 operations for each parameter in a matrix product and token, and causal attention at half of the context.

    What the mathematics needs, whatever the program computes beyond it: the measure of other people's tables.
    """
    cost = model_cost(config.model, vocab_size, attended=config.model.context / 2)
    tokens = config.data.batch_size * config.model.context
    return TRAINING_FACTOR * tokens * sum(part.forward_flops_per_token for part in cost.parts)


def bench(config: RunConfig, rounds: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Medians over so many rounds, after one call that compiles.

    Keys: step_ms, tokens_per_second, matmul_gflops, model_flops_per_step, share_of_matmul_rate, compile_seconds,
    peak_memory_bytes, device.
    """
    prepare_runtime(config)
    vocab_size = symbols_of(config.data)
    program = make_program(config, vocab_size)
    batch, context = config.data.batch_size, config.model.context
    draw = np.random.default_rng(0)
    steps = max(config.training.steps_per_dispatch, 2)  # as in training
    tokens = jnp.asarray(draw.integers(0, vocab_size, (steps, batch, context + 1)), jnp.int32)
    state = program.initial_state()
    report("compiling")
    started = time.perf_counter()
    jitted: Any = make_dispatch(program.step, steps)
    dispatch = jitted.lower(state, tokens, steps, program.given()).compile()
    compiled = time.perf_counter() - started
    size = _PRODUCT_SIZE.get(jax.default_backend(), 8192)
    matrix = jnp.asarray(draw.standard_normal((size, size)), config.model.dtype)
    product = jax.jit(lambda a: a @ a)
    product(matrix).block_until_ready()
    times: dict[str, list[float]] = {"step": [], "product": []}
    for index in range(rounds + 1):
        report(f"round {index} of {rounds}")
        started = time.perf_counter()
        state, metrics = dispatch(state, tokens, steps, program.given())
        jax.block_until_ready((state, metrics))
        times["step"].append((time.perf_counter() - started) / steps)
        started = time.perf_counter()
        product(matrix).block_until_ready()
        times["product"].append(time.perf_counter() - started)
    step, one = (statistics.median(found[1:]) for found in (times["step"], times["product"]))
    flops, rate = model_flops_per_step(config, vocab_size), 2 * size**3 / one
    return {
        "step_ms": 1e3 * step,
        "tokens_per_second": batch * context / step,
        "matmul_gflops": rate / 1e9,
        "model_flops_per_step": flops,
        "share_of_matmul_rate": flops / step / rate,
        "compile_seconds": compiled,
        "peak_memory_bytes": _peak(dispatch),
        "device": device_name(),
    }


def parameters_of(config: RunConfig) -> int:
    """Parameters of the model."""
    return model_cost(config.model, symbols_of(config.data)).parameters


def _peak(compiled: Any) -> int:
    """Bytes that were in use at most, where the device counts them, else those that the program holds."""
    stats = jax.devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return int(stats["peak_bytes_in_use"])
    return held(compiled)


def held(compiled: Any) -> int:
    """Bytes that a program holds at most: arguments, results that are no donated arguments, and what is between."""
    sizes = compiled.memory_analysis()
    outputs = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return int(sizes.argument_size_in_bytes + outputs + sizes.temp_size_in_bytes)


def bench_listing(found: dict[str, Any], parameters: int) -> str:
    """The figures for a terminal."""
    lines = [
        f"device             {found['device']}",
        f"parameters         {parameters:,}",
        f"step               {found['step_ms']:.1f} ms",
        f"speed              {found['tokens_per_second']:,.0f} tokens/s",
        f"matrix product     {found['matmul_gflops']:,.0f} GFLOP/s",
        f"model FLOPs        {found['model_flops_per_step'] / 1e9:.3g} GFLOP/step",
        f"share of that rate {found['share_of_matmul_rate']:.0%}",
        f"compilation        {found['compile_seconds']:.1f} s",
        f"peak memory        {found['peak_memory_bytes'] / 2**20:,.0f} MiB",
    ]
    return "\n".join(lines) + "\n"

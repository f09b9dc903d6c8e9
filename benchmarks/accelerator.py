"""Tokens a second and model FLOPs utilisation (MFU) on one accelerator: GPT-2 style models, standard and factorized.

    python benchmarks/accelerator.py [--size 30M 124M] [--batch N] [--rounds N] [--out FILE]
    python benchmarks/accelerator.py --size tiny      # anywhere, to see that it runs

Forward pass, backward pass, clipping and AdamW, computed in bfloat16 on parameters in float32, without dropout, on the
first device alone. MFU is what the mathematics needs (6 operations for each parameter in a matrix product and token,
and causal attention at half of the context) over step time and the device's published rate of dense bfloat16. The same
is given over the rate of a large matrix product, which takes turns with the models. Where the memory does not suffice,
the batch is halved, for all contestants of a size alike. A cohort (runs that share a program) is timed by `map` and by
`vmap`.
"""

from __future__ import annotations

import argparse
import gc
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.errors import JaxRuntimeError
from page import load, measured_by, put_out, say, spread
from train_step import measure, our_config

from wmresearch.config import RunConfig
from wmresearch.model.cost import model_cost
from wmresearch.reports.bench import held, model_flops_per_step
from wmresearch.training.program import make_program
from wmresearch.training.shared import make_batched
from wmresearch.training.step import make_dispatch

SIZES = {
    "tiny": {"d_model": 64, "n_layers": 1, "n_heads": 2, "context": 64, "bias": False},
    "30M": {"d_model": 384, "n_layers": 6, "n_heads": 6, "context": 1024},
    "124M": {"d_model": 768, "n_layers": 12, "n_heads": 12, "context": 1024},
}
COHORT = {
    "tiny": {"d_model": 32, "n_layers": 1, "n_heads": 2, "context": 32, "batch": 2},
    "small": {"d_model": 128, "n_layers": 4, "n_heads": 4, "context": 128, "batch": 16},
}
GPT2_VOCAB, TINY_VOCAB = 50257, 256
STEPS, PRODUCTS = 8, 8
"""Matrix products for each step that others make: a single one would be short beside the time that a call takes."""
PEAKS = {
    r"H100 \d+GB HBM3$": 989e12,
    r"H200$": 989e12,
    r"A100-\S+$": 312e12,
    r"L4$": 121e12,
    r"RTX 4090$": 165e12,
    r"TPU v4$": 275e12,
    r"TPU v5( lite|e)$": 197e12,
    r"TPU v5p?$": 459e12,
    r"TPU v6( lite|e)$": 918e12,
}
"""How JAX names a kind of device → the vendor's peak in dense bfloat16, operations a second. H100 and H200 are the SXM
boards; what has another name (PCIe, NVL, a slice of a card) has another peak, and is taken as unknown."""


def peak_rate(kind: str) -> float | None:
    """The published rate of a device, if it is known."""
    return next((rate for name, rate in PEAKS.items() if re.search(rf"\b{name}", kind)), None)


class Contestant(NamedTuple):
    config: RunConfig
    parameters: int
    flops: float
    """Of a step, as the mathematics needs them."""
    memory: int
    """Bytes that the compiled program holds at most."""
    run: Callable[[], None]


def contestant(config: RunConfig, vocab: int) -> Contestant:
    """Some steps in one call, compiled and called once."""
    program = make_program(config, vocab)
    shape = (STEPS, config.data.batch_size, config.model.context + 1)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, vocab, shape), jnp.int32)
    state, keys = program.initial_state(), program.given()
    jitted: Any = make_dispatch(program.step, STEPS)
    compiled = jitted.lower(state, tokens, STEPS, keys).compile()

    def run() -> None:
        nonlocal state
        state, metrics = compiled(state, tokens, STEPS, keys)
        jax.block_until_ready((state, metrics))

    run()
    parameters = model_cost(config.model, vocab).parameters
    return Contestant(config, parameters, model_flops_per_step(config, vocab), held(compiled), run)


def contestants(size: str, batch: int, vocab: int) -> dict[str, Contestant]:
    """Name → contestant of a size."""
    shape = {**SIZES[size], "batch": batch}
    r = shape["d_model"] // shape["n_heads"]
    outputs = {
        "standard": {"kind": "standard"},
        f"factorized, rank {r} = d/H": {"kind": "factorized", "rank": r},
        f"factorized, rank {r // 2} = d/(2H)": {"kind": "factorized", "rank": r // 2},
    }
    made = {}
    for name, output in outputs.items():
        started = time.perf_counter()
        made[name] = contestant(our_config(shape, output, dtype="bfloat16"), vocab)
        say(f"{size}, {name}, batch {batch}: ready after {time.perf_counter() - started:.0f} s")
    return made


def fitting(batch: int, make: Callable[[int], Any]) -> tuple[int, Any]:
    """The batch, halved until what is made of it fits into the memory; and what is made."""
    while True:
        try:
            return batch, make(batch)
        except JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error) or batch == 1:
                raise
        gc.collect()  # here, since the error holds what was made
        say(f"a batch of {batch} does not fit")
        batch //= 2


def products(rows: int) -> Callable[[], None]:
    """Products of square matrices, in one call."""
    draw = np.random.default_rng(0).standard_normal((rows, rows)) / rows**0.5
    matrix = jnp.asarray(draw, jnp.bfloat16)
    chain = jax.jit(lambda a: jax.lax.fori_loop(0, STEPS * PRODUCTS, lambda _, b: a @ b, a))
    return lambda: chain(matrix).block_until_ready()


def section(size: str, batch: int, vocab: int, rounds: int, rows: int) -> list[str]:
    """One size as Markdown."""
    product = products(rows)  # before the models, which then know how much memory is left
    fits, made = fitting(batch, lambda batch: contestants(size, batch, vocab))
    times = measure({"product": product} | {name: each.run for name, each in made.items()}, rounds, STEPS)
    rate = PRODUCTS * 2 * rows**3 / statistics.median(times.pop("product"))
    peak, standard = peak_rate(jax.devices()[0].device_kind), statistics.median(times["standard"])
    shape = SIZES[size]
    model = f"d {shape['d_model']}, {shape['n_layers']} layers, {shape['n_heads']} heads, vocabulary {vocab:,}"
    smaller = f" (a batch of {batch} does not fit into the memory)" if fits < batch else ""
    of_peak = f", {rate / peak:.1%} of the peak" if peak else ""
    lines = [
        f"## {size}: {model}",
        "",
        f"Batch {fits} × {shape['context']} tokens{smaller}.",
        f"Matrix product ({rows} × {rows}): {rate / 1e12:,.3g} TFLOP/s{of_peak}.",
        "",
        "| head output | parameters | step, ms (middle half) | tokens/s | / standard | MFU | MFU of product | GiB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, each in made.items():
        seconds = statistics.median(times[name])
        cells = [
            name,
            f"{each.parameters:,}",
            spread(times[name]),
            f"{fits * shape['context'] / seconds:,.0f}",
            f"{standard / seconds:.3f}",
            f"{each.flops / seconds / peak:.1%}" if peak else "–",
            f"{each.flops / seconds / rate:.1%}",
            f"{each.memory / 2**30:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def cohort_section(runs: int, rounds: int, size: str) -> list[str]:
    """Runs that share a program: their dispatches one after another (`map`), and as one batched call (`vmap`)."""
    shape, steps = COHORT[size], 16
    config = our_config(shape, {"kind": "standard"}, dtype="bfloat16")
    program = make_program(config, TINY_VOCAB)
    tokens = jnp.zeros((steps, shape["batch"], shape["context"] + 1), jnp.int32)
    given = [replace(program, config=config.model_copy(update={"seed": seed})).given() for seed in range(runs)]
    alone, together = make_dispatch(program.step, steps), make_batched(program.step, steps)
    states = {way: [program.initial_state() for _ in range(runs)] for way in ("map", "vmap")}

    def one_after_another() -> None:
        made = [alone(state, tokens, steps, own) for state, own in zip(states["map"], given, strict=True)]
        states["map"] = [state for state, _ in made]
        jax.block_until_ready(states["map"])

    def at_once() -> None:
        made = together(states["vmap"], [tokens] * runs, [steps] * runs, given)
        states["vmap"] = [state for state, _ in made]
        jax.block_until_ready(states["vmap"])

    times = measure({"map": one_after_another, "vmap": at_once}, rounds, steps)
    ratio = statistics.median(a / b for a, b in zip(times["map"], times["vmap"], strict=True))
    model = f"d {shape['d_model']}, {shape['n_layers']} layers, {shape['n_heads']} heads"
    return [
        f"## A cohort of {runs}: {model}, batch {shape['batch']} × {shape['context']}",
        "",
        "| way | a step of all runs, ms (middle half) |",
        "| --- | ---: |",
        *(f"| {way} | {spread(times[way])} |" for way in times),
        "",
        f"Batched, a step is {ratio:.2f} times as fast. `map` is also what runs one after another take.",
        "",
    ]


def device_lines() -> list[str]:
    """The device, and what its maker says of it."""
    device = jax.devices()[0]
    peak = peak_rate(device.device_kind)
    said = f"published peak {peak / 1e12:,.0f} TFLOP/s in dense bfloat16" if peak else "its peak is not known here"
    return [f"Device: {device.device_kind} (one of {jax.device_count()}), {said}."]


def peak_lines() -> list[str]:
    """The most memory that was in use, where the device counts it."""
    stats = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" not in stats:
        return []
    return [f"At most {stats['peak_bytes_in_use'] / 2**30:.2f} GiB were in use, with the states of all contestants."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", choices=SIZES, default=["30M", "124M"])
    parser.add_argument("--batch", type=int, default=16, help="sequences, where they fit")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cohort", type=int, default=8, help="runs trained together; 0 leaves them out")
    parser.add_argument("--vocab", type=int, help=f"instead of {GPT2_VOCAB}: 50304 is a multiple of 128")
    parser.add_argument("--product", type=int, help="rows of the matrices whose product is timed (8192, tiny: 256)")
    parser.add_argument("--out", type=Path, help="also write the Markdown to this file")
    options = parser.parse_args()
    page = [
        "# On an accelerator",
        "",
        f"{measured_by('accelerator.py', 'bfloat16')}, {options.rounds} rounds.",
        load(),
        *device_lines(),
        "",
        "MFU: 6 operations for each parameter in a matrix product and token, and causal attention at half of the",
        "context, over step time and published peak; MFU of product: the same over the rate of the matrix product.",
        "GiB: what the compiled program holds at most, its state included.",
        "",
    ]
    for size in options.size:
        vocab = options.vocab or (TINY_VOCAB if size == "tiny" else GPT2_VOCAB)
        page += section(
            size, options.batch, vocab, options.rounds, options.product or (256 if size == "tiny" else 8192)
        )
        gc.collect()
    if options.cohort:
        page += cohort_section(options.cohort, options.rounds, "tiny" if "tiny" in options.size else "small")
    put_out([*page, *peak_lines()], options.out)


if __name__ == "__main__":
    main()

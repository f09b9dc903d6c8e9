"""A training step of every kind of head output against the matrix-product rate, a plain Flax GPT and GPT-2 in PyTorch.

    python benchmarks/train_step.py [--shapes 256 128] [--rounds N] [--kinds all] [--out FILE]

All contestants take turns within each round, so that a busy machine slows all of them; times are medians over rounds
after a first call that compiles. FLOPs are the cost model's. The share is of the rate of a plain matrix product, by
model FLOPs; GFLOP of the program is XLA's own count before fusion. PyTorch takes part where it is installed:
`pip install 'wmresearch[bench]'`.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from page import load, measured_by, put_out, spread

from wmresearch.config import RunConfig, parse_run
from wmresearch.model.cost import model_cost
from wmresearch.reports.bench import held, model_flops_per_step
from wmresearch.training.program import make_program
from wmresearch.training.step import make_dispatch

VOCAB = 256
SHAPES = {
    128: {"d_model": 128, "n_layers": 4, "n_heads": 4, "context": 64, "batch": 12},
    256: {"d_model": 256, "n_layers": 4, "n_heads": 8, "context": 256, "batch": 8},
    512: {"d_model": 512, "n_layers": 4, "n_heads": 8, "context": 256, "batch": 8},
    768: {"d_model": 768, "n_layers": 2, "n_heads": 12, "context": 256, "batch": 4},
}
"""By width."""
STEPS = {128: 16, 256: 16, 512: 8, 768: 8}
"""In a turn, and in one call of ours: 16 is what a run makes unless told otherwise."""


def our_config(shape: dict[str, int], head_output: dict[str, Any], **model: Any) -> RunConfig:
    """A run of the shape, GPT-2 style."""
    rest = {key: value for key, value in shape.items() if key != "batch"}
    return parse_run(
        {
            "model": {**rest, "mlp": "gelu_tanh", "head_output": head_output, **model},
            "data": {"corpus": "stdlib/small", "tokenizer": "byte", "batch_size": shape["batch"]},
            "optimizer": {"learning_rate": 1e-3, "betas": [0.9, 0.99], "schedule": "constant"},
            "training": {"steps": 1000},
            "tracking": {"wandb": {"mode": "disabled"}},
        },
        "benchmark",
    )


def head_outputs(shape: dict[str, int], every: bool) -> dict[str, dict[str, Any]]:
    """Name → head output."""
    d, h = shape["d_model"], shape["n_heads"]
    r = d // h
    found: dict[str, dict[str, Any]] = {
        "standard": {"kind": "standard"},
        f"factorized, rank {r} = d/H": {"kind": "factorized", "rank": r},
        f"factorized, rank {r // 2}": {"kind": "factorized", "rank": r // 2},
    }
    if every:
        found |= {
            "dense": {"kind": "dense"},
            f"shared_basis, rank {r}": {"kind": "shared_basis", "rank": r},
            f"low_rank_diagonal, rank {r // 2}": {"kind": "low_rank_diagonal", "rank": r // 2},
            "block_diagonal, 8 blocks": {"kind": "block_diagonal", "blocks": 8},
            "kronecker, 8 × d/8": {"kind": "kronecker", "outer": 8},
            "monarch, 16 blocks": {"kind": "monarch", "blocks": 16},
            **{
                f"sparse, 10 % of {q} × {q} blocks": {
                    "kind": "sparse", "pattern": {"kind": "block", "size": q}, "density": 0.1,
                }
                for q in (32, 64, 128)
                if d % q == 0 and d // q > 3  # of nine blocks or fewer a tenth is none
            },
            "sparse, 10 % unstructured (masked dense)": {"kind": "sparse", "density": 0.1},
            "none": {"kind": "none"},
            "fixed_orthogonal": {"kind": "fixed_orthogonal"},
            "identity_value": {"kind": "identity_value"},
        }  # fmt: skip
    return found


@dataclass(frozen=True)
class Contestant:
    """A turn's steps, and what XLA says of one step."""

    run: Callable[[], None]
    flops: float | None = None
    """Counted in the program before it is fused, element by element operations too."""
    peak: int | None = None
    """Bytes: arguments, and what is held between."""

    def __call__(self) -> None:
        self.run()


def ours(config: RunConfig, tokens: np.ndarray) -> Contestant:
    """Some steps of ours in one call."""
    program = make_program(config, VOCAB)
    state, batches, keys = program.initial_state(), jnp.asarray(tokens), program.given()
    dispatch = make_dispatch(program.step, len(tokens)).lower(state, batches, len(tokens), keys).compile()  # type: ignore[attr-defined]
    flops = jax.jit(program.step).lower(state, batches[0], keys).cost_analysis()["flops"]

    def run() -> None:
        nonlocal state
        state, metrics = dispatch(state, batches, len(tokens), keys)
        jax.block_until_ready((state, metrics))

    return Contestant(run, flops, held(dispatch))


class PlainBlock(nn.Module):
    """A pre-norm block in Linen, as most would write it."""

    heads: int

    @nn.compact
    def __call__(self, x: Any, mask: Any) -> Any:
        x = x + nn.MultiHeadDotProductAttention(num_heads=self.heads)(nn.LayerNorm()(x), mask=mask)
        y = nn.Dense(4 * x.shape[-1])(nn.LayerNorm()(x))
        return x + nn.Dense(x.shape[-1])(nn.gelu(y))


class PlainGpt(nn.Module):
    """A GPT in Linen, embeddings tied."""

    width: int
    layers: int
    heads: int
    context: int

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        embed = nn.Embed(VOCAB, self.width)
        positions = self.param("positions", nn.initializers.normal(0.02), (self.context, self.width))
        x = embed(tokens) + positions[None]
        mask = nn.make_causal_mask(tokens)
        for _ in range(self.layers):
            x = PlainBlock(self.heads)(x, mask)
        return embed.attend(nn.LayerNorm()(x))


def plain_flax(shape: dict[str, int], tokens: np.ndarray) -> Contestant:
    """As many steps of the Linen model, one call each."""
    model = PlainGpt(shape["d_model"], shape["n_layers"], shape["n_heads"], shape["context"])
    batches = jnp.asarray(tokens)
    params = model.init(jax.random.key(0), batches[0, :, :-1])["params"]
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, b2=0.99, weight_decay=0.1))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)

    @jax.jit
    def step(state: TrainState, batch: Any) -> tuple[TrainState, Any]:
        def loss(params: Any) -> Any:
            logits = state.apply_fn({"params": params}, batch[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()

        value, gradient = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=gradient), value

    lowered = step.lower(state, batches[0])

    def run() -> None:
        nonlocal state
        for batch in batches:
            state, value = step(state, batch)
        jax.block_until_ready((state, value))

    return Contestant(run, lowered.cost_analysis()["flops"], held(lowered.compile()))


def pytorch(shape: dict[str, int], tokens: np.ndarray, compiled: bool) -> Callable[[], None]:
    """As many steps of Hugging Face's GPT-2."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    settings = GPT2Config(
        vocab_size=VOCAB, n_positions=shape["context"], n_embd=shape["d_model"], n_layer=shape["n_layers"],
        n_head=shape["n_heads"], resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    model: Any = GPT2LMHeadModel(settings).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    forward = torch.compile(model) if compiled else model
    batches = torch.as_tensor(tokens[:, :, :-1].astype(np.int64))

    def run() -> None:
        for batch in batches:
            loss = forward(batch, labels=batch).loss  # it shifts the labels itself
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return run


def matrix_product(size: int, repeats: int) -> Callable[[], None]:
    """So many products of square matrices."""
    matrix = jnp.asarray(np.random.default_rng(0).standard_normal((size, size)), jnp.float32)
    product = jax.jit(lambda a: a @ a)

    def run() -> None:
        for _ in range(repeats):
            product(matrix).block_until_ready()

    return run


def measure(contestants: dict[str, Callable[[], None]], rounds: int, steps: int) -> dict[str, list[float]]:
    """Seconds a step in each round."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        run()
    gc.collect()
    for index in range(rounds):
        names = list(contestants)
        for name in names[index % len(names) :] + names[: index % len(names)]:
            started = time.perf_counter()
            contestants[name]()
            times[name].append((time.perf_counter() - started) / steps)
    return times


def table(width: int, rounds: int, every: bool, size: int, torch_too: bool) -> list[str]:
    """One shape as Markdown."""
    shape, steps = SHAPES[width], STEPS[width]
    tokens = np.random.default_rng(0).integers(0, VOCAB, (steps, shape["batch"], shape["context"] + 1), np.int32)
    configs = {name: our_config(shape, output) for name, output in head_outputs(shape, every).items()}
    contestants: dict[str, Callable[[], None]] = {"matrix product": matrix_product(size, steps)}
    contestants |= {name: ours(config, tokens) for name, config in configs.items()}
    contestants["plain Flax (Linen)"] = plain_flax(shape, tokens)
    if torch_too:
        contestants["PyTorch, GPT-2, eager"] = pytorch(shape, tokens, compiled=False)
        contestants["PyTorch, GPT-2, compiled"] = pytorch(shape, tokens, compiled=True)
    times = measure(contestants, rounds, steps)
    medians = {name: statistics.median(found) for name, found in times.items()}
    rate = 2 * size**3 / medians["matrix product"]
    lines = [
        f"## d {width}: {shape['n_layers']} layers, {shape['n_heads']} heads, {shape['batch']} × {shape['context']}",
        "",
        f"Matrix product ({size} × {size}): {rate / 1e9:,.0f} GFLOP/s.",
        "",
        "| step | ms (middle half) | time / standard | FLOPs / standard | share of rate | XLA's GFLOP | peak, MiB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    counted = {name: model_cost(config.model, VOCAB).training_flops_per_token for name, config in configs.items()}
    for name, seconds in medians.items():
        if name == "matrix product":
            continue
        flops = model_flops_per_step(configs.get(name, configs["standard"]), VOCAB)
        relative = f"{counted[name] / counted['standard']:.3f}" if name in counted else "–"
        share = f"{flops / seconds / rate:.0%}"
        ratio = statistics.median(a / b for a, b in zip(times[name], times["standard"], strict=True))
        one = contestants[name]
        known = isinstance(one, Contestant) and one.flops is not None and one.peak is not None
        program = f"{one.flops / 1e9:.1f} | {one.peak / 2**20:,.0f}" if known else "– | –"
        lines.append(f"| {name} | {spread(times[name])} | {ratio:.3f} | {relative} | {share} | {program} |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, nargs="+", default=[128, 256, 512], choices=SHAPES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kinds", choices=["few", "all"], default="few")
    parser.add_argument("--size", type=int, default=2048, help="rows of the matrices whose product is timed")
    parser.add_argument("--out", type=Path, help="also write the Markdown to this file")
    options = parser.parse_args()
    torch_too = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
    page = [
        "# A training step",
        "",
        f"{measured_by('train_step.py')}, {options.rounds} rounds.",
        load(),
        "",
    ]
    for width in options.shapes:
        page += table(width, options.rounds, options.kinds == "all", options.size, torch_too)
    put_out(page, options.out)


if __name__ == "__main__":
    main()

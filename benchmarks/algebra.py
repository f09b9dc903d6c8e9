"""Nuclear norm and gradient against other ways; float32 against float64; penalties beside a training step.

    python benchmarks/algebra.py [--rounds N] [--out benchmarks/results/algebra.md]

The contestants take turns within each round, so that a busy machine slows all of them; times are medians over rounds
after one call that compiles. The slow ones are timed on a few matrices and scaled to the batch: the table says so.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from page import load, measured_by, put_out
from threadpoolctl import threadpool_limits

from wmresearch.algebra import FactoredMatrix, penalties
from wmresearch.config.model import ModelConfig
from wmresearch.config.optimizer import AdamWConfig
from wmresearch.head_output.weights import initialize
from wmresearch.model import Transformer, make_nats
from wmresearch.training.optimizers import make_optimizer, make_schedule
from wmresearch.training.parameters import parameter_facts
from wmresearch.training.step import Given, make_loss, make_state, make_step

WIDTH, RANK, MATRICES = 768, 64, 144


def value_and_gradient(norm: Callable[[FactoredMatrix], Any]) -> Callable:
    return jax.jit(jax.value_and_grad(lambda matrix: jnp.sum(norm(matrix))))


def by_dense_svd(matrices: FactoredMatrix) -> Any:
    return jax.lax.map(lambda m: jnp.linalg.svd(m.a @ m.b, full_matrices=False)[1], matrices)


def by_householder(matrices: FactoredMatrix) -> Any:
    """QR of both factors by LAPACK, SVD of the core, derivative by autograd: what the identity says, written down.

    One by one: on CPUs two batched calls at a time can wait for each other for ever (see `algebra/decompositions.py`).
    """

    def one(matrix: FactoredMatrix) -> Any:
        r_a, r_b = (jnp.linalg.qr(x)[1] for x in (matrix.a, matrix.b.T))
        return jnp.linalg.svd(r_a @ r_b.T, full_matrices=False)[1]

    return jax.lax.map(one, matrices)


def medians(contestants: dict[str, tuple[Callable, tuple]], rounds: int) -> dict[str, float]:
    """Seconds of one call of each, the contestants taking turns."""
    for call, arguments in contestants.values():
        jax.block_until_ready(call(*arguments))
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, (call, arguments) in contestants.items():
            start = time.perf_counter()
            jax.block_until_ready(call(*arguments))
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) for name, t in times.items()}


def random_factors(rng: np.random.Generator, n: int) -> FactoredMatrix:
    a, b = rng.standard_normal((n, WIDTH, RANK)), rng.standard_normal((n, RANK, WIDTH))
    return FactoredMatrix(jnp.asarray(a / WIDTH**0.5, jnp.float32), jnp.asarray(b / RANK**0.5, jnp.float32))


def graded_factors(rng: np.random.Generator, n: int, condition: float) -> tuple[FactoredMatrix, tuple]:
    """A and B with that condition each, spectrum geometric; and the same factors as float64 numpy arrays."""
    s = np.geomspace(1, 1 / condition, RANK)

    def tall() -> np.ndarray:
        u = np.linalg.qr(rng.standard_normal((n, WIDTH, RANK)))[0]
        return (u * s @ np.linalg.qr(rng.standard_normal((n, RANK, RANK)))[0]).astype(np.float32)

    a, b = tall(), np.swapaxes(tall(), -1, -2)
    return FactoredMatrix(jnp.asarray(a), jnp.asarray(b)), (a.astype(np.float64), b.astype(np.float64))


def speed(rounds: int) -> list[str]:
    rng = np.random.default_rng(0)
    ours = value_and_gradient(FactoredMatrix.nuclear_norm)
    few = {"dense": 1, "householder": 12}
    hard, _ = graded_factors(rng, MATRICES, 1e6)
    seconds = medians(
        {
            "ours": (ours, (random_factors(rng, MATRICES),)),
            "ours, condition 1e6": (ours, (hard,)),
            "householder": (value_and_gradient(by_householder), (random_factors(rng, few["householder"]),)),
            "dense": (value_and_gradient(by_dense_svd), (random_factors(rng, few["dense"]),)),
        },
        rounds,
    )
    whole = {name: s * MATRICES / few.get(name, MATRICES) for name, s in seconds.items()}
    rows = {
        "dense": ("SVD of the materialized matrices, autograd", f"{few['dense']}, scaled"),
        "householder": ("LAPACK QR of both factors, SVD of the core, autograd", f"{few['householder']}, scaled"),
        "ours": ("`FactoredMatrix.nuclear_norm`", str(MATRICES)),
        "ours, condition 1e6": ("`FactoredMatrix.nuclear_norm`, factors of condition 1e6", str(MATRICES)),
    }
    lines = [
        f"| {MATRICES} matrices of {WIDTH} × {WIDTH}, rank {RANK} | timed on | ms | times faster |",
        "|---|--:|--:|--:|",
    ]
    for name, (label, timed) in rows.items():
        lines.append(f"| {label} | {timed} | {1e3 * whole[name]:,.0f} | {whole['dense'] / whole[name]:.0f} |")
    return lines


def precision() -> list[str]:
    call = jax.jit(lambda m: (m.nuclear_norm(), jax.grad(lambda m: jnp.sum(m.nuclear_norm()))(m)))
    lines = ["| condition of A, and of B | value | gradient of A | gradient of B |", "|--:|--:|--:|--:|"]
    for condition in (1e1, 1e2, 1e3, 1e4, 1e5, 1e6):
        matrix, (a, b) = graded_factors(np.random.default_rng(1), 2, condition)
        value, gradient = call(matrix)
        q_a, r_a = np.linalg.qr(a)
        q_b, r_b = np.linalg.qr(np.swapaxes(b, -1, -2))
        u, s, vt = np.linalg.svd(r_a @ np.swapaxes(r_b, -1, -2))
        w = u @ vt
        exact = s.sum(-1), q_a @ w @ r_b, np.swapaxes(r_a, -1, -2) @ w @ np.swapaxes(q_b, -1, -2)
        errors = [
            np.linalg.norm(np.asarray(x, np.float64) - y) / np.linalg.norm(y)
            for x, y in zip((value, gradient.a, gradient.b), exact, strict=True)
        ]
        lines.append(f"| {condition:.0e} | " + " | ".join(f"{e:.1e}" for e in errors) + " |")
    return lines


def share_of_a_step(rounds: int) -> list[str]:
    """Value and gradient of each penalty on all heads' maps, beside one step of the model that has them."""
    model = ModelConfig(d_model=256, n_layers=4, n_heads=8, context=256)
    transformer = Transformer(model, 65)
    config = AdamWConfig(learning_rate=1e-3)
    optimizer = make_optimizer(config, 100, parameter_facts(transformer))
    schedule = make_schedule(config.schedule, config.learning_rate, 100)
    step = jax.jit(make_step(make_loss(make_nats(transformer, model.dtype)), optimizer, schedule))
    state = make_state(initialize(transformer, jax.random.key(0)), optimizer)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 65, (8, 257)), jnp.int32)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((4, 8, 256, 32)), rng.standard_normal((4, 8, 32, 256))
    matrix = FactoredMatrix(jnp.asarray(a / 16, jnp.float32), jnp.asarray(b / 6, jnp.float32))
    listed: dict[str, Callable[[FactoredMatrix], Any]] = {
        "nuclear": penalties.nuclear,
        "frobenius": penalties.frobenius,
        "head_overlap": penalties.head_overlap,
        "these three": lambda m: penalties.nuclear(m) + penalties.frobenius(m) + penalties.head_overlap(m),
        "spectral": penalties.spectral,
        "schatten 3": lambda m: penalties.schatten(m, 3),
        "l1": penalties.l1,
        "group_lasso rows": penalties.group_lasso,
        "group_lasso columns": lambda m: penalties.group_lasso(m, "columns"),
        "group_lasso blocks 32 × 32": lambda m: penalties.group_lasso(m, (32, 32)),
        "factor_decay": penalties.factor_decay,
        "orthogonal_factors": penalties.orthogonal_factors,
    }
    contestants: dict[str, tuple[Callable, tuple]] = {"step": (step, (state, tokens, Given()))}
    contestants |= {name: (value_and_gradient(penalty), (matrix,)) for name, penalty in listed.items()}
    seconds = medians(contestants, rounds)
    whole = seconds.pop("step")
    lines = [
        f"A training step (d 256, 4 layers, 8 heads, batch 8 × 256): {1e3 * whole:,.0f} ms.",
        "",
        "| penalty, `every: 1` | ms | % of the step |",
        "|---|--:|--:|",
    ]
    return lines + [f"| {name} | {1e3 * s:.1f} | {100 * s / whole:.1f} |" for name, s in seconds.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="also write the Markdown to this file")
    options = parser.parse_args()
    threadpool_limits(1, user_api="blas")  # as training does
    page = [
        "# Algebra",
        "",
        f"{measured_by('algebra.py')}.",
        load(),
        "",
        "## Nuclear norm and its gradient",
        "",
        *speed(options.rounds),
        "",
        "## Relative error against float64",
        "",
        *precision(),
        "",
        "## Penalties beside a training step",
        "",
        *share_of_a_step(options.rounds),
    ]
    put_out(page, options.out)


if __name__ == "__main__":
    main()

"""The toy of weight decay: min ‖AB − D‖² + λ/2 (‖A‖² + ‖B‖²), whose minimum has singular values (d − λ/2)₊.

Who reaches it? Gradient descent and Adam with the decay in the gradient do. AdamW, whose decay stands beside the
moments, does not: with full batches it shrinks nothing, and with gradient noise of standard deviation s it ends near
(d − wd·s/2)₊, since its steps are divided by √v̂ ≈ s and the penalty that decay amounts to is wd·√v̂.

    python experiments/q04_weight_decay/toy.py --out results/q04_weight_decay/toy.md
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from wmresearch.algebra import FactoredMatrix, penalties

D = np.array([4.0, 2.0, 1.0, 0.2])
STRENGTH = 0.5
"""λ, or AdamW's weight decay."""
SEEDS = 5
STEPS = 20_000
AVERAGED = 0.25
"""The share of the steps, at the end, over which A B is averaged: the noise moves it."""


class Row(NamedTuple):
    """One method: how it is called, its optimizer, where the decay stands, the noise, the prediction."""

    name: str
    optimizer: optax.GradientTransformation
    in_gradient: bool
    noise: float
    predicted: np.ndarray


def rows() -> list[Row]:
    """All methods of the table."""
    rate = optax.cosine_decay_schedule(0.02, STEPS, alpha=0.02)
    adamw = optax.adamw(rate, weight_decay=STRENGTH)
    shrunk = np.maximum(D - STRENGTH / 2, 0)
    found = [
        Row("gradient descent, L2", optax.sgd(0.02), True, 0.0, shrunk),
        Row("Adam, L2 in the gradient", optax.adam(rate), True, 0.0, shrunk),
        Row("AdamW, full batches", adamw, False, 0.0, D),
    ]
    for noise in (0.5, 1.0, 2.0):
        predicted = np.maximum(D - STRENGTH * noise / 2, 0)
        found.append(Row(f"AdamW, noise s = {noise:g}", adamw, False, noise, predicted))
    return found


def singular_values(row: Row, seed: int) -> np.ndarray:
    """Of A B where a method ends, averaged over its last steps."""
    keys = jax.random.split(jax.random.key(seed), 3)
    start = FactoredMatrix(*(jax.random.normal(key, (4, 4)) for key in keys[:2]))

    def objective(matrix: FactoredMatrix) -> jax.Array:
        fit = jnp.sum((matrix.dense() - jnp.diag(jnp.asarray(D))) ** 2)
        return fit + STRENGTH * penalties.factor_decay(matrix) if row.in_gradient else fit

    def step(carry: tuple, index: jax.Array) -> tuple:
        matrix, state, total = carry
        gradient = jax.grad(objective)(matrix)
        noises = jax.random.split(jax.random.fold_in(keys[2], index))
        gradient = FactoredMatrix(
            *(
                g + row.noise * jax.random.normal(k, g.shape)
                for g, k in zip(jax.tree.leaves(gradient), noises, strict=True)
            )
        )
        updates, state = row.optimizer.update(gradient, state, matrix)
        matrix = optax.apply_updates(matrix, updates)
        total = total + jnp.where(index >= (1 - AVERAGED) * STEPS, matrix.dense(), 0)
        return (matrix, state, total), None

    run = jax.jit(lambda m: jax.lax.scan(step, (m, row.optimizer.init(m), jnp.zeros((4, 4))), jnp.arange(STEPS))[0][2])
    return np.linalg.svd(np.asarray(run(start)) / (AVERAGED * STEPS), compute_uv=False)


def page() -> str:
    """The table as Markdown."""
    lines = [
        "| method | predicted σ | measured σ (mean ± SD over seeds) |",
        "| --- | ---: | ---: |",
    ]
    for row in rows():
        found = np.stack([singular_values(row, seed) for seed in range(SEEDS)])
        measured = ", ".join(f"{m:.3f} ± {s:.3f}" for m, s in zip(found.mean(0), found.std(0, ddof=1), strict=True))
        lines.append(f"| {row.name} | {', '.join(f'{value:.3f}' for value in row.predicted)} | {measured} |")
    notes = [
        "",
        f"- min ‖AB − D‖² + λ/2 (‖A‖² + ‖B‖²) with D = diag({', '.join(f'{d:g}' for d in D)}), A and B 4 × 4.",
        f"- λ, or AdamW's weight decay: {STRENGTH:g}.",
        f"- {SEEDS} seeds; {STEPS:,} steps; singular values of A B averaged over the last {AVERAGED:.0%} of them.",
        "- Predicted: (d − λ/2)₊ where the decay is in the gradient; d for AdamW with full batches, and (d − wd·s/2)₊",
        "  with gradient noise of standard deviation s.",
        f"- jax {jax.__version__}, float64.",
    ]
    return "\n".join(lines + notes) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the Markdown to this file")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    text = page()
    print(text, end="")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Identity 9: min ‖AB − D‖² + λ/2 (‖A‖² + ‖B‖²) has singular values (d − λ/2)₊, whoever minimizes it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from wmresearch.algebra import FactoredMatrix, penalties, proxes

D = np.array([4.0, 2.0, 1.0, 0.2])
STRENGTH = 0.5
SHRUNK = np.maximum(D - STRENGTH / 2, 0)

fit = lambda m: jnp.sum((m.dense() - jnp.diag(D)) ** 2)
with_decay = lambda m: fit(m) + STRENGTH * penalties.factor_decay(m)
with_nuclear = lambda m: fit(m) + STRENGTH * penalties.nuclear(m)


def minimize(objective, optimizer, steps, after=lambda m: m):
    """Singular values where the optimizer ends."""
    rng = np.random.default_rng(0)
    start = FactoredMatrix(jnp.asarray(rng.standard_normal((4, 4))), jnp.asarray(rng.standard_normal((4, 4))))

    def step(carry, _):
        matrix, state = carry
        updates, state = optimizer.update(jax.grad(objective)(matrix), state, matrix)
        return (after(optax.apply_updates(matrix, updates)), state), None

    run = jax.jit(lambda m: jax.lax.scan(step, (m, optimizer.init(m)), length=steps)[0][0])
    end = run(start)
    return np.linalg.svd(np.asarray(end.dense()), compute_uv=False)


def adam(steps, **options):
    return optax.adam(optax.cosine_decay_schedule(0.05, steps), **options)


@pytest.mark.parametrize(
    ("objective", "optimizer", "steps"),
    [
        (with_decay, optax.sgd(0.02), 3000),
        (with_decay, adam(4000), 4000),
        (with_nuclear, optax.sgd(0.02), 3000),
    ],
    ids=["gradient descent", "Adam, L2 in the gradient", "explicit nuclear norm"],
)
def test_an_l2_penalty_on_the_factors_is_a_nuclear_norm(objective, optimizer, steps):
    # a singular value at zero is a kink of the nuclear norm: the last step's size remains
    np.testing.assert_allclose(
        minimize(objective, optimizer, steps), SHRUNK, atol=2e-2 if objective is with_nuclear else 1e-4
    )


def test_proximal_gradient_descent_gets_there_too():
    rate = 0.05
    step = jax.jit(lambda n: proxes.nuclear(n, rate * STRENGTH))
    dense = np.zeros((4, 4))
    for _ in range(200):
        moved = dense - rate * 2 * (dense - np.diag(D))
        dense = np.asarray(step(FactoredMatrix(jnp.asarray(moved), jnp.eye(4))).dense())
    np.testing.assert_allclose(np.linalg.svd(dense, compute_uv=False), SHRUNK, atol=1e-8)


def test_decoupled_decay_is_not_an_l2_penalty():
    """AdamW with full batches shrinks nothing: its steps are as large as its learning rate for any small gradient."""
    steps = 4000
    decoupled = optax.adamw(optax.cosine_decay_schedule(0.05, steps), weight_decay=STRENGTH)
    found = minimize(fit, decoupled, steps)
    np.testing.assert_allclose(found, D, atol=5e-2)
    assert np.all(np.abs(found - SHRUNK) > 0.1)

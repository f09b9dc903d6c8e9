"""Weight decay in its three places: in the gradient, beside the moments, and of the maps instead of their factors."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.training.programs import DOUBLE, drawn, flat, head_output, program
from wmresearch.config.optimizer import AdamWConfig, ConstantSchedule
from wmresearch.training.optimizers import make_optimizer
from wmresearch.training.parameters import ParameterFacts


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("clip", [None, 1.0])
def test_decay_in_the_gradient_is_adam_with_l2_added_to_the_clipped_gradient(clip):
    draw = np.random.default_rng(0)
    params = {"matrix": draw.standard_normal((4, 3)), "gain": draw.standard_normal(3)}
    facts = {"matrix": ParameterFacts("mlp", True), "gain": ParameterFacts("mlp", False)}
    config = AdamWConfig(
        learning_rate=0.1, betas=(0.8, 0.95), weight_decay=0.3, decay="gradient", clip_norm=clip,
        schedule=ConstantSchedule(),
    )  # fmt: skip
    optimizer = make_optimizer(config, 6, facts)
    ours = jax.tree.map(jnp.asarray, params)
    state, update = optimizer.init(ours), jax.jit(optimizer.update)
    mean, square = ({name: np.zeros_like(value) for name, value in params.items()} for _ in range(2))
    for step in range(6):
        gradient = {
            name: (3.0 if step % 2 else 0.01) * draw.standard_normal(value.shape) for name, value in params.items()
        }
        updates, state = update(jax.tree.map(jnp.asarray, gradient), state, ours)
        ours = optax.apply_updates(ours, updates)
        norm = math.sqrt(sum((value**2).sum() for value in gradient.values()))
        for name, value in params.items():
            g = gradient[name] * (min(1.0, clip / norm) if clip else 1.0)
            g = g + (0.3 * value if name == "matrix" else 0.0)
            mean[name] = 0.8 * mean[name] + 0.2 * g
            square[name] = 0.95 * square[name] + 0.05 * g**2
            direction = mean[name] / (1 - 0.8 ** (step + 1))
            direction /= np.sqrt(square[name] / (1 - 0.95 ** (step + 1))) + 1e-8
            params[name] = value - 0.1 * direction
            np.testing.assert_allclose(ours[name], params[name], rtol=1e-11, err_msg=f"{name} after step {step + 1}")


PARTS = {
    "head_output": ("head_output/value", "head_output/output"),
    "queries_keys": ("attention/query", "attention/key"),
    "mlp": ("mlp/up", "mlp/down", "mlp/gate"),
    "embeddings": ("embedding", "positions", "logits"),
}


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_without_a_gradient_each_part_shrinks_at_its_own_rate(kind):
    """AdamW's share of a Muon run at AdamW's own learning rate."""
    rates = {"head_output": 0.5, "queries_keys": 0.0, "mlp": None, "embeddings": 0.25}
    more = {"optimizer__adam_learning_rate": 0.02} if kind == "muon" else {}
    chosen = program(
        **DOUBLE, model__tie_embeddings=False, optimizer__kind=kind, optimizer__learning_rate=0.1,
        optimizer__weight_decay=0.3, optimizer__decay_of=rates, optimizer__schedule="constant", **more,
    )  # fmt: skip
    params = drawn(chosen)

    @jax.jit
    def after(params):
        zero = jax.tree.map(jnp.zeros_like, params)
        updates, _ = chosen.optimizer.update(zero, chosen.optimizer.init(params), params)
        return optax.apply_updates(params, updates)

    seen = set()
    for (path, old), new in zip(flat(params).items(), flat(after(params)).values(), strict=True):
        part = next((part for part, names in PARTS.items() if path.endswith(names)), None)
        seen.add(part)
        rate = 0.0 if part is None else 0.3 if rates[part] is None else rates[part]
        learning_rate = 0.02 if kind == "muon" and part == "embeddings" else 0.1
        np.testing.assert_allclose(new, old * (1 - learning_rate * rate), rtol=1e-14, err_msg=path)
    assert seen == {*PARTS, None}


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_decay_of_the_maps_is_the_gradient_of_half_their_squared_norm_beside_the_moments(kind):
    """Identity 8 with the norm's gain: ∇_A = Σ_i Γ² A B_i B_iᵀ over the heads that share A, ∇_B_i = AᵀΓ²A B_i."""
    shape = {
        **DOUBLE, "model__n_heads": 4, "model__n_kv_heads": 2, "model__head_output": {"kind": "factorized", "rank": 3},
        "optimizer__kind": kind, "optimizer__schedule": "constant", "optimizer__learning_rate": 0.1,
    }  # fmt: skip
    chosen = program(**shape, optimizer__frobenius_decay=0.7)
    params, gradient = drawn(chosen), drawn(chosen, seed=1)

    @jax.jit
    def both(params):
        state, update = chosen.optimizer.init(params), chosen.optimizer.update
        decayed = chosen.parts.decay(params)
        results = update(gradient, state, params, decayed=decayed), update(gradient, state, params)
        return [(optax.apply_updates(params, updates), state) for updates, state in results]

    (new, state), (plain, plain_state) = both(params)
    own, gain = head_output(params), np.asarray(params["blocks"][0]["attention_norm"]["gain"])
    a, b = own["factor_a"], own["factor_b"]
    of_a, of_b = np.zeros_like(a), np.zeros_like(b)
    for head in range(4):
        scaled = gain[:, None] ** 2 * a[:, head // 2]
        of_a[:, head // 2] += scaled @ b[head] @ b[head].T
        of_b[head] = scaled.T @ a[:, head // 2] @ b[head]
    moved, expected = flat(new), flat(plain)
    for path, leaf in moved.items():
        step = of_a if path.endswith("factor_a") else of_b if path.endswith("factor_b") else 0.0
        np.testing.assert_allclose(leaf, expected[path] - 0.1 * 0.7 * step, rtol=1e-12, atol=1e-14, err_msg=path)
    assert abs(of_a).max() > 0.01
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(plain_state), strict=True):
        np.testing.assert_array_equal(one, other)

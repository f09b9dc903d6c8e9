"""The schedule against nanoGPT's formula, the optimizer against AdamW written out in numpy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.training.programs import batch, drawn, program, state_at
from wmresearch.config.model import ModelConfig
from wmresearch.config.optimizer import AdamWConfig, ConstantSchedule, CosineSchedule, LinearSchedule
from wmresearch.head_output.weights import abstract_params
from wmresearch.model import Transformer
from wmresearch.training.optimizers import make_optimizer, make_schedule
from wmresearch.training.parameters import ParameterFacts, parameter_facts


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def nanogpt_rate(step, peak, warmup, steps, lowest):
    """As its train.py has it, with lr_decay_iters = steps and min_lr = lowest."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    ratio = (step - warmup) / (steps - warmup)
    return lowest + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (peak - lowest)


@pytest.mark.parametrize(("warmup", "final"), [(100, 0.1), (0, 0.0), (1, 1.0), (399, 0.1)])
def test_warm_up_and_cosine_are_those_of_nanogpt(warmup, final):
    rate = make_schedule(CosineSchedule(warmup=warmup, final=final), 3e-3, 400)
    steps = np.arange(400)
    expected = [nanogpt_rate(step, 3e-3, warmup, 400, final * 3e-3) for step in steps]
    np.testing.assert_allclose(rate(jnp.asarray(steps)), expected, rtol=1e-12, atol=1e-18)
    np.testing.assert_allclose(rate(400), final * 3e-3, rtol=1e-12, atol=1e-18)


@pytest.mark.parametrize("warmup", [0, 7])
def test_linear_decay_and_a_constant_rate(warmup):
    steps = np.arange(50)
    warm = 2.0 * (steps + 1) / (warmup + 1)
    linear = make_schedule(LinearSchedule(warmup=warmup, final=0.25), 2.0, 50)(jnp.asarray(steps))
    down = np.interp(steps, [warmup, 50], [2.0, 0.5])
    np.testing.assert_allclose(linear, np.where(steps < warmup, warm, down), rtol=1e-12)
    constant = make_schedule(ConstantSchedule(warmup=warmup), 2.0, 50)(jnp.asarray(steps))
    np.testing.assert_allclose(constant, np.where(steps < warmup, warm, 2.0), rtol=1e-12)


def test_a_schedule_that_is_all_warm_up_is_finite():
    rates = make_schedule(CosineSchedule(warmup=10), 1.0, 10)(jnp.arange(12))
    np.testing.assert_allclose(rates[:10], np.arange(1, 11) / 11)
    assert np.isfinite(rates).all()


@pytest.mark.parametrize("clip", [None, 1.0])
def test_the_optimizer_is_adamw_with_decay_on_marked_parameters_and_clipping_by_the_global_norm(clip):
    draw = np.random.default_rng(0)
    params = {"matrix": draw.standard_normal((4, 3)), "gain": draw.standard_normal(3)}
    facts = {"matrix": ParameterFacts("mlp", True), "gain": ParameterFacts("mlp", False)}
    config = AdamWConfig(
        learning_rate=0.1, betas=(0.8, 0.95), weight_decay=0.3, clip_norm=clip, schedule=CosineSchedule(warmup=2)
    )
    optimizer = make_optimizer(config, 6, facts)
    ours = jax.tree.map(jnp.asarray, params)
    state, update = optimizer.init(ours), jax.jit(optimizer.update)
    mean, square = ({name: np.zeros_like(value) for name, value in params.items()} for _ in range(2))
    norms = []
    for step in range(6):
        scale = 3.0 if step % 2 else 0.01
        gradient = {name: scale * draw.standard_normal(value.shape) for name, value in params.items()}
        updates, state = update(jax.tree.map(jnp.asarray, gradient), state, ours)
        ours = optax.apply_updates(ours, updates)

        norm = math.sqrt(sum((value**2).sum() for value in gradient.values()))
        norms.append(norm)
        rate = nanogpt_rate(step, 0.1, 2, 6, 0.01)
        for name, value in params.items():
            g = gradient[name] * (min(1.0, clip / norm) if clip else 1.0)
            mean[name] = 0.8 * mean[name] + 0.2 * g
            square[name] = 0.95 * square[name] + 0.05 * g**2
            direction = mean[name] / (1 - 0.8 ** (step + 1))
            direction /= np.sqrt(square[name] / (1 - 0.95 ** (step + 1))) + 1e-8
            params[name] = value - rate * (direction + (0.3 * value if facts[name].decays else 0.0))
        for name, value in params.items():
            np.testing.assert_allclose(ours[name], value, rtol=1e-11, err_msg=f"{name} after step {step + 1}")
    assert min(norms) < 1.0 < max(norms), "both sides of clipping have to be seen"


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_momentum_in_bfloat16_leaves_the_second_moment_as_it_is(kind):
    optimizer = {"kind": kind, "learning_rate": 1e-2}
    small, full = (program(optimizer=optimizer | {"momentum_dtype": dtype}) for dtype in ("bfloat16", None))

    def types(made):
        leaves = jax.tree_util.tree_leaves_with_path(made.state_like().optimizer)
        return {jax.tree_util.keystr(path): leaf.dtype.name for path, leaf in leaves if leaf.ndim}

    halved = {path for path, dtype in types(small).items() if dtype == "bfloat16"}
    assert halved == {path for path in types(full) if ".mu" in path} and len(halved) > 4
    assert all(types(full)[path] == dtype for path, dtype in types(small).items() if path not in halved)

    start = drawn(full)
    one, other = (jax.jit(made.step)(state_at(made, start), batch(0), made.given())[0] for made in (small, full))
    for before, small_leaf, full_leaf in zip(*map(jax.tree.leaves, (start, one.params, other.params)), strict=True):
        np.testing.assert_allclose(small_leaf - before, full_leaf - before, rtol=0.02, atol=2e-4)


def test_without_a_gradient_only_weight_decay_moves_and_only_matrices():
    model = ModelConfig(d_model=8, n_layers=1, n_heads=2, context=4, bias=True, param_dtype="float64")
    transformer, draw = Transformer(model, 11), np.random.default_rng(0)
    abstract = abstract_params(transformer)
    params = jax.tree.map(lambda leaf: jnp.asarray(draw.standard_normal(leaf.shape)), abstract)
    config = AdamWConfig(learning_rate=0.1, weight_decay=0.5, schedule=ConstantSchedule())
    optimizer = make_optimizer(config, 1, parameter_facts(transformer))

    @jax.jit
    def update(params):
        updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
        return optax.apply_updates(params, updates)

    after = update(params)
    for (path, leaf), new in zip(jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(after), strict=True):
        vector = "gain" in str(path[-1]) or "bias" in str(path[-1])
        np.testing.assert_allclose(new, leaf if vector else 0.95 * leaf, rtol=1e-14, err_msg=str(path))

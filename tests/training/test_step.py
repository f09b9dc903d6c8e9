"""What a step and a dispatch compute: loss and gradient on a real model, the rest on the simplest loss there is."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.examples import same
from wmresearch.config.model import ModelConfig
from wmresearch.config.optimizer import AdamWConfig, CosineSchedule
from wmresearch.head_output.weights import abstract_params
from wmresearch.model import Transformer, make_apply, make_nats
from wmresearch.training.optimizers import make_optimizer, make_schedule
from wmresearch.training.parameters import ParameterFacts
from wmresearch.training.randomness import Purpose, purpose_key, step_key
from wmresearch.training.step import Given, make_dispatch, make_evaluate, make_loss, make_state, make_step

OPTIMIZED = True

VOCAB, CONTEXT, BATCH = 19, 8, 3


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


class RealModel:
    """A transformer in float64, all of its parameters random, so that no term can hide behind a zero."""

    def __init__(self):
        shape = {"d_model": 8, "n_layers": 1, "n_heads": 2, "context": CONTEXT}
        self.transformer = Transformer(ModelConfig(**shape, dtype="float64", param_dtype="float64"), VOCAB)
        self.apply = jax.jit(make_apply(self.transformer, "float64"))
        nats = make_nats(self.transformer, "float64")
        self.loss, self.evaluate = jax.jit(make_loss(nats)), make_evaluate(nats)
        abstract = abstract_params(self.transformer)
        draw = np.random.default_rng(1)
        self.params = jax.tree.map(lambda leaf: jnp.asarray(draw.normal(0.1, 0.2, leaf.shape)), abstract)
        self.tokens = jnp.asarray(draw.integers(0, VOCAB, (BATCH, CONTEXT + 1)), jnp.int32)


real_model = functools.cache(RealModel)


def test_the_loss_is_the_mean_cross_entropy_of_the_next_token():
    model = real_model()
    value, metrics = model.loss(model.params, model.tokens, None)
    log_p = log_softmax(np.asarray(model.apply(model.params, model.tokens[:, :-1], None)))
    expected = np.mean([-log_p[b, t, model.tokens[b, t + 1]] for b in range(BATCH) for t in range(CONTEXT)])
    np.testing.assert_allclose(value, expected, rtol=1e-13)
    assert metrics.keys() == {"train_loss"} and metrics["train_loss"] == value


def test_the_gradient_agrees_with_finite_differences():
    model = real_model()
    gradient = jax.jit(jax.grad(lambda params: model.loss(params, model.tokens, None)[0]))(model.params)
    draw, h = np.random.default_rng(2), 1e-5

    def loss_at(distance, direction):
        moved = jax.tree.map(lambda p, v: p + distance * v, model.params, direction)
        return float(model.loss(moved, model.tokens, None)[0])

    for _ in range(3):
        direction = jax.tree.map(lambda leaf: jnp.asarray(draw.standard_normal(leaf.shape)), model.params)
        slope = sum(float(jnp.vdot(g, v)) for g, v in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True))
        difference = (loss_at(h, direction) - loss_at(-h, direction)) / (2 * h)
        np.testing.assert_allclose(difference, slope, rtol=1e-6)


OPTIMIZER = AdamWConfig(learning_rate=1e-2, schedule=CosineSchedule(warmup=2))
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (7, BATCH, CONTEXT + 1)).astype(np.int32)
KEY = functools.cache(lambda: Given(dropout=purpose_key(3, Purpose.DROPOUT)))


def noisy_loss(params, tokens, key, rows):
    """A loss that depends on parameters, tokens and key."""
    noise = jax.random.normal(key, (), jnp.float64)
    value = jnp.square(params["w"][tokens] - noise).mean()
    return value, {"train_loss": value, "noise": noise}


def start():
    return make_state({"w": jnp.linspace(-1.0, 1.0, VOCAB)}, optimizer())


@functools.cache
def optimizer():
    return make_optimizer(OPTIMIZER, 7, {"w": ParameterFacts("mlp", True)})


@functools.cache
def step():
    return jax.jit(make_step(noisy_loss, optimizer(), make_schedule(OPTIMIZER.schedule, OPTIMIZER.learning_rate, 7)))


@functools.cache
def dispatch():
    return make_dispatch(step(), 5)


def test_three_steps_and_then_two_are_five_steps():
    five, metrics = dispatch()(start(), TOKENS[:5], 5, KEY())
    three, first = dispatch()(start(), TOKENS[:5], 3, KEY())
    two, second = dispatch()(three, np.concatenate([TOKENS[3:5], TOKENS[:3]]), 2, KEY())
    assert same(five, two)
    assert int(two.step) == 5
    for name, values in metrics.items():
        assert same(values, jnp.concatenate([first[name][:3], second[name][:2]])), name


def test_a_dispatch_is_its_steps_one_after_another():
    state, metrics = dispatch()(start(), TOKENS[:5], 4, KEY())
    alone = start()
    for index in range(4):
        alone, values = step()(alone, TOKENS[index], KEY())
        for name, value in values.items():
            np.testing.assert_allclose(metrics[name][index], value, rtol=1e-12, err_msg=f"{name} at {index}")
    np.testing.assert_allclose(state.params["w"], alone.params["w"], rtol=1e-12)


def test_steps_beyond_the_number_asked_for_are_not_made():
    state, metrics = dispatch()(start(), TOKENS[:5], 2, KEY())
    assert int(state.step) == 2
    assert all(
        (np.asarray(values[2:]) == 0).all() and (np.asarray(values[:2]) != 0).all() for values in metrics.values()
    )


def test_a_dispatch_takes_over_the_buffers_of_the_state():
    state = start()
    dispatch()(state, TOKENS[:5], 2, KEY())
    assert state.params["w"].is_deleted()


def test_a_step_tells_the_norm_of_the_gradient_before_clipping_and_the_learning_rate():
    state = start()
    gradient = jax.grad(lambda params: noisy_loss(params, TOKENS[0], step_key(KEY().dropout, state.step), None)[0])(
        state.params
    )
    _, metrics = step()(state, TOKENS[0], KEY())
    np.testing.assert_allclose(metrics["gradient_norm"], np.linalg.norm(gradient["w"]), rtol=1e-12)
    np.testing.assert_allclose(metrics["learning_rate"], 1e-2 / 3, rtol=1e-12)


def test_what_is_random_is_drawn_anew_at_each_step_and_depends_on_the_step_alone():
    def noise(at):
        return float(step()(start()._replace(step=jnp.int32(at)), TOKENS[0], KEY())[1]["noise"])

    drawn = [noise(at) for at in range(5)]
    assert len(set(drawn)) == 5
    assert drawn == [noise(at) for at in range(5)]


def test_no_two_of_seed_purpose_and_step_share_a_key():
    keys = [
        step_key(purpose_key(seed, purpose), jnp.int32(n)) for seed in (0, 1) for purpose in Purpose for n in (0, 1)
    ]
    assert len({jax.random.key_data(key).tobytes() for key in keys}) == len(keys)

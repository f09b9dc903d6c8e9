"""Penalties in training: what is added to the update, at which strength, and that they do what they are for."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import TypeAdapter

from tests.training.examples import config
from wmresearch.algebra import FactoredMatrix, penalties
from wmresearch.config.penalty import Penalty
from wmresearch.head_output.weights import abstract_params, join
from wmresearch.model import Transformer, make_nats
from wmresearch.model.maps import make_maps
from wmresearch.training.optimizers import make_optimizer, make_schedule
from wmresearch.training.parameters import head_outputs, parameter_facts
from wmresearch.training.penalties import Penalties, penalty_function, strength
from wmresearch.training.step import Given, Parts, make_loss, make_state, make_step

KINDS = [
    {"kind": "nuclear"},
    {"kind": "frobenius"},
    {"kind": "spectral"},
    {"kind": "schatten", "p": 0.5},
    {"kind": "l1"},
    {"kind": "group_lasso", "groups": "blocks", "block": 8},
    {"kind": "head_overlap"},
    {"kind": "factor_decay"},
    {"kind": "orthogonal_factors"},
]


def penalty(setting, strength=0.01, **more):
    return TypeAdapter(Penalty).validate_python({"strength": strength, **setting, **more})


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def model(text):
    return config(
        text, model__n_layers=2, model__n_kv_heads=1, model__head_output={"kind": "factorized", "rank": 3},
        model__param_dtype="float64", model__dtype="float64",
    )  # fmt: skip


def parts(chosen):
    transformer = Transformer(chosen.model, 31)
    abstract = abstract_params(transformer)
    draw = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: jnp.asarray(0.3 * draw.standard_normal(leaf.shape)), abstract)
    return transformer, params


def test_maps_are_those_of_every_layer_with_the_norms_gain(model):
    transformer, params = parts(model)
    found = make_maps(transformer)(params).dense()
    assert found.shape[:2] == (2, model.model.n_heads)
    for layer, head in ((0, 0), (1, 1)):
        block = params["blocks"][layer]
        own = block["attention"]["head_output"]
        gain = jnp.diag(block["attention_norm"]["gain"])
        np.testing.assert_allclose(found[layer, head], gain @ own["factor_a"][:, 0] @ own["factor_b"][head], atol=1e-13)


def test_the_update_is_that_of_the_clipped_loss_gradient_plus_the_penalties(model):
    transformer, params = parts(model)
    chosen = model.optimizer.model_copy(update={"clip_norm": 0.1})
    optimizer = make_optimizer(chosen, 5, parameter_facts(transformer))
    schedule = make_schedule(chosen.schedule, chosen.learning_rate, 5)
    configs = [penalty({"kind": "nuclear"}), penalty({"kind": "frobenius"}, 0.5)]
    loss, maps = make_loss(make_nats(transformer, "float64")), make_maps(transformer)
    added = Penalties(configs, maps, 5, 2, head_outputs(transformer))
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, 31, (3, model.model.context + 1)))
    state = make_state(params, optimizer)
    after, metrics = jax.jit(make_step(loss, optimizer, schedule, Parts(penalties=added)))(state, tokens, Given())

    def by_hand(params):
        found = maps(params)
        return 0.01 * penalties.nuclear(found) + 0.5 * penalties.frobenius(found)

    gradient, by_penalties = (
        jax.jit(jax.grad(lambda p: loss(p, tokens, None)[0]))(params),
        jax.jit(jax.grad(by_hand))(params),
    )
    norm = float(jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient))))
    assert norm > 0.1
    first_moment = jax.tree.map(lambda g, p: (1 - chosen.betas[0]) * (0.1 / norm * g + p), gradient, by_penalties)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12), after.optimizer[2].mu, first_moment)
    np.testing.assert_allclose(metrics["gradient_norm"], norm)
    found = maps(params)
    np.testing.assert_allclose(metrics["penalty/nuclear"], penalties.nuclear(found))
    np.testing.assert_allclose(metrics["penalty/frobenius_added"], 0.5 * penalties.frobenius(found))
    gains = [by_penalties["blocks"][layer]["attention_norm"]["gain"] for layer in range(2)]
    assert not any(gain.any() for gain in gains), "a penalty does not shrink the gain that queries and keys share"


@pytest.mark.parametrize("setting", KINDS, ids=[setting["kind"] for setting in KINDS])
def test_every_kind_is_differentiable_and_falls_along_its_gradient(model, setting):
    transformer, params = parts(model)
    chosen = penalty(setting, 1.0)
    maps = make_maps(transformer)
    function = penalty_function(chosen, group=2)
    value = jax.jit(lambda params: function(maps(params)))
    penalties = Penalties([chosen], maps, 5, 2, head_outputs(transformer))
    gradient, _, metrics = jax.jit(penalties)(params, jnp.zeros((), jnp.int32), jnp.ones(()), {})
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    np.testing.assert_allclose(metrics[f"penalty/{chosen.kind}"], value(params))
    length = sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(gradient))
    assert length > 0
    small = 1e-6 / length
    moved = join(params, gradient, both=lambda leaf, g: leaf - small * g)
    assert float(value(params) - value(moved)) == pytest.approx(1e-6, rel=0.02)


def test_factor_decay_counts_a_shared_factor_once():
    a = jnp.asarray(np.random.default_rng(0).standard_normal((1, 5, 2)))
    b = jnp.asarray(np.random.default_rng(1).standard_normal((2, 2, 5)))
    shared = FactoredMatrix(jnp.repeat(a, 2, axis=0), b)
    expected = (jnp.sum(a**2) + jnp.sum(b**2)) / 2
    np.testing.assert_allclose(penalty_function(penalty({"kind": "factor_decay"}), 2)(shared), expected)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [2, 2, 2, 2, 2]),
        ({"kind": "warmup", "steps": 4}, [0.5, 1, 1.5, 2, 2]),
        ({"kind": "cosine", "final": 0.5}, [2, 1.853553, 1.5, 1.146447, 1]),
    ],
)
def test_strength_by_step(schedule, expected):
    chosen = penalty({"kind": "nuclear"}, 2.0, schedule=schedule)
    np.testing.assert_allclose([strength(chosen, 5, jnp.asarray(step)) for step in range(5)], expected, rtol=1e-6)

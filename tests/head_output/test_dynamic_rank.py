"""Heads of unequal ranks: the same function as without buckets, without gates, without what is gone."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.head_output.test_orders import drawn, layer, mixing, randomized
from tests.model.counting import product_flops
from wmresearch.config.dynamic_rank import DynamicRankConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.orders import ORDERS, attended_keys
from wmresearch.head_output.rank_gates import STRETCH, TEMPERATURE, with_chance
from wmresearch.head_output.rank_layout import MOST_BUCKETS, RankLayout
from wmresearch.head_output.weights import PADDING, initialize
from wmresearch.model.attention import Attention


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def dynamic(**setting):
    return layer("dynamic_rank", {"bucket": 2} | setting)


def value_and_gradients(module, params, x):
    graph, _ = nnx.split(module)

    def loss(params, x):
        y = nnx.merge(graph, params)(x)
        return jnp.sum(jnp.sin(y)), y

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True, allow_int=True))(params, x)


def test_equal_ranks_start_as_factorized_and_are_it():
    """Parameter by parameter to the bit at first, and in value and gradient; query heads share A."""
    equal, factorized = dynamic(rank=6), layer("factorized", {"rank": 6})
    key = jax.random.key(3)
    own, other = initialize(equal, key), initialize(factorized, key)
    for name in ("query", "key", "query_bias", "key_bias"):
        assert (own[name] == other[name]).all()
    for name in ("factor_a", "factor_b", "value_bias", "output_bias"):
        leaf = other["head_output"][name]
        assert (own["head_output"][name].reshape(leaf.shape) == leaf).all()
    (_, y), (by_own, by_x) = value_and_gradients(equal, own, drawn(2, 12, 16))
    (_, same_y), (by_other, by_same_x) = value_and_gradients(factorized, other, drawn(2, 12, 16))
    np.testing.assert_allclose(y, same_y, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(by_x, by_same_x, rtol=1e-10, atol=1e-12)
    for name in ("factor_a", "factor_b", "value_bias", "output_bias"):
        want = by_other["head_output"][name]
        np.testing.assert_allclose(by_own["head_output"][name].reshape(want.shape), want, rtol=1e-10, atol=1e-12)


def test_unequal_ranks_are_factorized_with_heads_padded():
    """In a whole layer, from the same key: each bucket mixes with its own heads' queries and keys."""
    unequal, padded = dynamic(ranks=[[2, 5]]), layer("factorized", {"ranks": [[2, 5]]})
    key, x = jax.random.key(3), drawn(2, 12, 16)
    (_, y), (_, by_x) = value_and_gradients(unequal, initialize(unequal, key), x)
    (_, same_y), (_, by_same_x) = value_and_gradients(padded, initialize(padded, key), x)
    np.testing.assert_allclose(y, same_y, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(by_x, by_same_x, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("ranks", [[5, 2], [2, 5], [3, 3]])
def test_buckets_compute_what_padded_heads_compute(ranks):
    """In value and in every gradient; `factors` and the padded factors are what other code reads."""
    module = dynamic(ranks=[ranks]).head_output
    graph, _ = nnx.split(module)
    x, p = drawn(2, 5, 16), jax.nn.softmax(drawn(2, 4, 5, 5, seed=2), axis=-1)

    def loss(params, x, p, padded):
        own = nnx.merge(graph, params)
        order = np.array(own.layout.query_heads)
        y = ORDERS["attend_then_write"](own, x, mixing(p[:, order])) if padded else own(x, mixing(p[:, order]))
        return jnp.sum(jnp.sin(y + own.output_bias[...][None, None] if padded else y))

    found = [
        jax.jit(jax.value_and_grad(lambda *a, padded=padded: loss(*a, padded), argnums=(0, 1, 2), allow_int=True))(
            randomized(module), x, p
        )
        for padded in (False, True)
    ]
    for one, other in zip(jax.tree.leaves(found[0]), jax.tree.leaves(found[1]), strict=True):
        if one.dtype == jnp.float64:
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def test_a_head_without_directions_is_not_there():
    """Neither its queries and keys, nor the products with them: operations are counted in the program."""
    all_there, half_there = (
        Attention(model(DynamicRankConfig(ranks=(ranks,), bucket=2))) for ranks in ((4, 4, 4, 4), (4, 0, 4, 0))
    )
    assert half_there.query.shape == (16, 2, 4)
    assert half_there.key_bias.shape == (2, 4)
    flops = []
    for module in (all_there, half_there):
        graph, _ = nnx.split(module)
        params = jax.eval_shape(lambda module=module: initialize(module, jax.random.key(0)))
        x = jax.ShapeDtypeStruct((2, 12, 16), jnp.float64)
        program = jax.make_jaxpr(lambda params, x, graph=graph: nnx.merge(graph, params)(x))(params, x)
        flops.append(product_flops(program.jaxpr))
        assert flops[-1] == 2 * 12 * module.flops_per_token(attended_keys(12))
    assert flops[1] == flops[0] / 2


def model(config, **changes):
    shape = {"d_model": 16, "n_layers": 1, "n_heads": 4, "context": 12}
    return ModelConfig(**(shape | {"dtype": "float64", "param_dtype": "float64"} | changes), head_output=config)


def test_a_layer_may_lose_all_its_heads():
    module = Attention(model(DynamicRankConfig(ranks=((0, 0, 0, 0), (4, 0, 0, 0))), n_layers=2))
    params = initialize(module, jax.random.key(0))
    assert params.keys() == {"head_output"}
    params["head_output"]["output_bias"] = jnp.arange(16.0)
    (_, y), _ = value_and_gradients(module, params, drawn(2, 12, 16))
    np.testing.assert_array_equal(y, np.broadcast_to(np.arange(16.0), (2, 12, 16)))
    merged = nnx.merge(nnx.split(module)[0], params).head_output
    assert merged.factors().dense().shape == (4, 16, 16)
    np.testing.assert_array_equal(merged.bias_written(), np.arange(16.0))


METHODS = {
    "hard_concrete": {"kind": "hard_concrete", "heads": True},
    "budgeted": {"kind": "budgeted"},
    "nested": {"kind": "nested"},
}


@pytest.mark.parametrize("kind", METHODS)
def test_a_gate_at_zero_is_a_removed_direction(kind):
    """In value, and in the gradients of all that is left."""
    gated = dynamic(rank=4, method=METHODS[kind], total_rank=8, fine_tune_steps=0)
    params = randomized(gated)
    output = params["head_output"]
    closed = np.array([0, 3, 5])
    name = {"hard_concrete": "slow", "budgeted": "scale", "nested": "within"}[kind]
    shut = -100.0 if kind == "hard_concrete" else 0.0
    output["gates"][name] = jnp.ones(8).at[closed].set(shut)
    if kind == "hard_concrete":
        output["gates"]["slow_of_head"] = jnp.ones(2)
    graph, _ = nnx.split(gated)
    gates = np.asarray(nnx.merge(graph, params).head_output.gates())
    assert (np.flatnonzero(gates == 0) == closed).all()

    removed = jax.tree.map(lambda leaf: leaf, params)
    rows = gated.head_output.layout.rows_of_places()[closed].ravel()
    removed["head_output"]["factor_a"] = output["factor_a"].at[:, closed].set(0)
    removed["head_output"]["factor_b"] = output["factor_b"].at[rows].set(0)
    (_, y), (by_gated, _) = value_and_gradients(gated, params, drawn(2, 12, 16))
    (_, same), (by_removed, _) = value_and_gradients(gated, removed, drawn(2, 12, 16))
    np.testing.assert_allclose(y, same, rtol=1e-12, atol=1e-12)
    left = np.setdiff1d(np.arange(8), closed)
    for path in ("query", "key"):
        np.testing.assert_allclose(by_gated[path], by_removed[path], rtol=1e-10, atol=1e-10)
    a, b = (found["head_output"]["factor_a"][:, left] for found in (by_gated, by_removed))
    np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def test_hard_concrete_gates_have_the_probability_and_the_mean_that_they_say():
    """P(g > 0) over many draws, for gates of several log α; without chance g is clip(σ(log α) (ζ − γ) + γ)."""
    gated = dynamic(rank=4, method={"kind": "hard_concrete", "speed": 7.0}, total_rank=8, fine_tune_steps=0)
    log_alpha = np.linspace(-3, 3, 8)
    graph, state = nnx.split(gated.head_output)
    params = randomized(gated)["head_output"]
    params["gates"]["slow"] = jnp.asarray(log_alpha / 7.0)
    own = nnx.merge(graph, params).gates
    uniform = jax.random.uniform(jax.random.key(0), (20_000, 8))

    @jax.vmap
    def gates(u):
        return nnx.merge(graph, params | {"gates": with_chance(params["gates"], 7.0, {"slow": u})}).gates()

    found = np.asarray(gates(uniform))
    np.testing.assert_allclose((found > 0).mean(axis=0), own.scores(params["origin"]), atol=0.012)
    low, high = STRETCH
    s = 1 / (1 + np.exp(-(np.log(uniform) - np.log1p(-uniform) + log_alpha) / TEMPERATURE))
    np.testing.assert_allclose(found, np.clip(s * (high - low) + low, 0, 1), atol=1e-9)
    np.testing.assert_allclose(own(), np.clip((high - low) / (1 + np.exp(-log_alpha)) + low, 0, 1), atol=1e-12)
    assert state


@given(ranks=st.lists(st.integers(0, 20), min_size=1, max_size=8), bucket=st.integers(1, 8), group=st.integers(1, 3))
def test_every_direction_and_row_has_one_place(ranks, bucket, group):
    layout = RankLayout.of(tuple(ranks), bucket, group)
    origin, heads = layout.numbered(tuple(ranks)), layout.head_of_place()
    found = sorted((int(head), int(number)) for head, number in zip(heads, origin, strict=True) if number != PADDING)
    assert found == [(head, number) for head, rank in enumerate(ranks) for number in range(rank)]
    least = [-bucket * (-rank // bucket) for rank in ranks]
    assert len(layout.buckets) <= MOST_BUCKETS
    assert layout.width == _fewest_places(sorted((width for width in least if width), reverse=True))
    assert sorted(layout.rows_of_places().ravel()) == list(range(layout.width * group))
    assert (layout.place_of_row()[layout.rows_of_places()] == np.arange(layout.width)[:, None]).all()
    assert len(layout.buckets) == len({bucket.width for bucket in layout.buckets})
    assert [head for head, _ in layout.places()] == list(layout.heads)


def _fewest_places(widths):
    """By trying every way to cut falling widths into at most so many buckets."""
    n = len(widths)
    cuts = itertools.chain.from_iterable(
        itertools.combinations(range(1, n), buckets - 1) for buckets in range(1, MOST_BUCKETS + 1)
    )
    sums = [sum(widths[start] * (end - start) for start, end in itertools.pairwise([0, *cut, n])) for cut in cuts if n]
    return min(sums, default=0)


@settings(max_examples=8)  # each compiles its own draws
@given(ranks=st.lists(st.integers(0, 9), min_size=2, max_size=2), seed=st.integers(0, 5))
def test_a_direction_starts_the_same_whichever_others_are_there(ranks, seed):
    if not any(ranks):
        return
    full = DynamicRankConfig(rank=9, bucket=1)
    some = full.model_copy(update={"ranks": (tuple(ranks),), "bucket": 8})
    shape = model(full, n_heads=2)
    of = lambda config: initialize(Attention(shape.model_copy(update={"head_output": config})), jax.random.key(seed))
    part, whole = of(some), of(full)["head_output"]
    layout = RankLayout.of(tuple(ranks), 8, 1)
    for place, (head, number) in enumerate(zip(layout.head_of_place(), layout.numbered(tuple(ranks)), strict=True)):
        column = part["head_output"]["factor_a"][:, place]
        scale = 1 if number == PADDING else (9 / ranks[head]) ** 0.25
        want = np.zeros(16) if number == PADDING else whole["factor_a"][:, head * 9 + number] * scale
        np.testing.assert_allclose(column, want, rtol=1e-12)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({}, "rank"),
        ({"rank": 4, "ranks": ((4, 4, 4, 4),)}, "rank"),
        ({"rank": 4, "method": {"kind": "nested"}}, "total_rank"),
        ({"rank": 4, "total_rank": 8}, "total_rank"),
        ({"rank": 4, "method": {"kind": "nested"}, "total_rank": 99, "fine_tune_steps": 1}, "at most 16"),
        ({"ranks": ((0, 0, 0, 0),)}, "above 0"),
        ({"ranks": ((4, 4, 4),)}, "each of 4"),
        ({"rank": 17}, "from 1 to d_model"),
        ({"rank": 4, "compact_at": (3,)}, "closes no direction"),
        ({"rank": 4, "order": "mix_first"}, "attend_then_write"),
    ],
)
def test_what_cannot_be_is_said(setting, said):
    with pytest.raises(ValidationError, match=said):
        model(DynamicRankConfig.model_validate(setting))

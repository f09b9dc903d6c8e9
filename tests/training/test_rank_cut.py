"""Cuts and compaction of a run's whole state: what changes, and what must not."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.examples import same
from tests.training.programs import DOUBLE, batch, drawn, head_output, program, state_at
from wmresearch.head_output.compact import alive
from wmresearch.head_output.weights import PADDING
from wmresearch.training.program import make_program
from wmresearch.training.rank_choice import _random_ranks, singular, with_gates_folded
from wmresearch.training.rank_cut import (
    _read,
    _rebased,
    carry,
    close,
    compact,
    cut,
    make_input_moments,
    model_at,
    with_ranks,
)
from wmresearch.training.rank_training import outputs_of

SHAPE = DOUBLE | {
    "model__d_model": 16,
    "model__n_layers": 2,
    "model__n_heads": 4,
    "model__n_kv_heads": 2,
    "training__steps": 40,
}
FOUND = {"kind": "dynamic_rank", "rank": 6, "bucket": 2, "total_rank": 11, "fine_tune_steps": 10}
METHODS = {
    "hard_concrete": {"kind": "hard_concrete"},
    "hard_concrete and heads": {"kind": "hard_concrete", "heads": True},
    "budgeted": {"kind": "budgeted"},
    "nested": {"kind": "nested"},
    "energy": {"kind": "energy"},
    "energy, whitened": {"kind": "energy", "whitened": True},
    "random": {"kind": "random"},
    "uniform": {"kind": "uniform"},
}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def finding(method, **changes):
    return program(**SHAPE | changes, model__head_output=FOUND | {"method": METHODS[method]})


def fixed(**changes):
    return program(**SHAPE | changes, model__head_output={"kind": "dynamic_rank", "rank": 6, "bucket": 2})


def with_model(chosen, model):
    return make_program(chosen.config.model_copy(update={"model": model}), chosen.vocab_size)


def like_of(chosen):
    return lambda model: with_model(chosen, model).state_like()


def build_of(chosen):
    return lambda model: with_model(chosen, model).transformer


def trained_state(chosen, steps=0):
    """At parameters that are all random, places and masks as they start; after some steps, moments are not zero."""
    start = chosen.initial_params()
    params = jax.tree.map(lambda made, random, own: random if own else made, start, drawn(chosen), chosen.parts.trained)
    state, step = state_at(chosen, params), jax.jit(chosen.step)
    for index in range(steps):
        state, _ = step(state, batch(index), chosen.given())
    return state


def logits(chosen, state):
    return chosen.apply(state.params, batch(9)[:, :-1], None)


def a_choice(chosen, seed=0, empty=((0, 1),)):
    """Some places of each layer, and for some (layer, head) none."""
    draw, keep = np.random.default_rng(seed), {}
    for layer, output in outputs_of(chosen.transformer).items():
        keep[layer] = draw.random(output.layout.width) < 0.5
        for head, places in output.layout.places():
            keep[layer][places.start] = True
            if (layer, head) in empty:
                keep[layer][places] = False
    return keep


OPTIMIZERS = {"adamw": {}, "muon": {"optimizer": {"kind": "muon", "learning_rate": 1e-2, "update_rms": 0.2}}}
"""Muon with updates of an equal size, which the shape decides that a parameter had at first."""


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_compaction_keeps_the_function_and_the_next_update(optimizer):
    """To 1e-10: outputs, metrics, and after the next two steps all parameters and moments that are left.

    A head is gone with its queries and keys; a penalty's gradient, cached for other steps, shrinks too.
    """
    penalties = [{"kind": "frobenius", "strength": 0.1, "every": 4}]
    chosen = fixed(penalties=penalties, **OPTIMIZERS[optimizer])
    keep = a_choice(chosen)
    state = close(chosen.transformer, trained_state(chosen, steps=2), keep)
    model, less = compact(chosen.transformer, chosen.config.model, state, like_of(chosen))
    smaller = with_model(chosen, model)
    assert [sum(row) for row in model.head_output.ranks] == [int(keep[layer].sum()) for layer in (0, 1)]
    assert model.head_output.ranks[0][1] == 0
    assert less.params["blocks"][0]["attention"]["query"].shape == (16, 2, 4)
    assert sum(leaf.size for leaf in jax.tree.leaves(less)) < sum(leaf.size for leaf in jax.tree.leaves(state))
    np.testing.assert_allclose(logits(smaller, less), logits(chosen, state), rtol=1e-10, atol=1e-10)
    for index in (5, 6):
        state, metrics = jax.jit(chosen.step)(state, batch(index), chosen.given())
        less, of_less = jax.jit(smaller.step)(less, batch(index), smaller.given())
        for name, value in metrics.items():
            np.testing.assert_allclose(of_less[name], value, rtol=1e-9, err_msg=name)
    _, expected = compact(chosen.transformer, chosen.config.model, state, like_of(chosen), keep)
    for got, want in zip(jax.tree.leaves(less), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-9 * max(1, np.abs(want).max()))


def test_compaction_in_float32_and_twice():
    """Outputs to 1e-5; what is compacted again is the same to the bit; so is what loses nothing."""
    chosen = fixed(model__dtype="float32", model__param_dtype="float32")
    with jax.enable_x64(False):
        state = close(chosen.transformer, trained_state(chosen), a_choice(chosen))
        model, less = compact(chosen.transformer, chosen.config.model, state, like_of(chosen))
        smaller = with_model(chosen, model)
        np.testing.assert_allclose(logits(smaller, less), logits(chosen, state), rtol=1e-5, atol=1e-5)
        again, same_state = compact(smaller.transformer, model, less, like_of(chosen))
        assert again == model
        assert same(same_state, less)
        whole = trained_state(chosen)
        assert same(compact(chosen.transformer, chosen.config.model, whole, like_of(chosen))[1], whole)


def test_what_closed_directions_wrote_of_their_biases_stays():
    """The layer gives the same for x = 0."""
    chosen = fixed()
    state = trained_state(chosen)
    after = close(chosen.transformer, state, a_choice(chosen))
    for old, new in zip(merged(chosen, state).blocks, merged(chosen, after).blocks, strict=True):
        assert np.abs(new.attention.head_output.value_bias[...] - old.attention.head_output.value_bias[...]).max() > 0
        want = old.attention.head_output.bias_written()
        np.testing.assert_allclose(new.attention.head_output.bias_written(), want, rtol=1e-12, atol=1e-12)


def test_dropout_of_a_head_does_not_change_when_another_goes():
    """Its mask is drawn by the head's original number."""
    chosen = fixed(model__dropout=0.4, model__bias=False)
    state = close(chosen.transformer, trained_state(chosen), a_choice(chosen, empty=((0, 0),)))
    model, less = compact(chosen.transformer, chosen.config.model, state, like_of(chosen))
    assert model.head_output.ranks[0][0] == 0
    smaller, key = with_model(chosen, model), jax.random.key(5)
    found = [each.apply(at.params, batch(9)[:, :-1], key) for each, at in ((chosen, state), (smaller, less))]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("method", ["hard_concrete and heads", "nested"])
def test_a_gate_s_chance_does_not_change_when_other_directions_go(method):
    """The loss of a step is the same after directions that were closed in both ways have left."""
    chosen = finding(method)
    state = close(chosen.transformer, trained_state(chosen), a_choice(chosen, empty=((0, 0), (1, 1))))
    model, less = compact(chosen.transformer, chosen.config.model, state, like_of(chosen))
    assert model.head_output.method.kind == METHODS[method]["kind"]
    smaller = with_model(chosen, model)
    losses = [
        jax.jit(each.step)(at, batch(3), each.given())[1]["train_loss"]
        for each, at in ((chosen, state), (smaller, less))
    ]
    np.testing.assert_allclose(*losses, rtol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_the_budget_is_met_exactly(method):
    """Over both layers; directions are numbered as before, and the model goes on without its method."""
    chosen = finding(method)
    state = trained_state(chosen)
    model, less = cut(
        build_of(chosen), chosen.config.model, state, like_of(chosen), batch(0)[:, :-1], final=True, seed=3
    )
    assert sum(map(sum, model.head_output.ranks)) == 11
    assert model.head_output.method.kind == "fixed"
    smaller = with_model(chosen, model)
    jax.tree.map(
        lambda leaf, spec: (leaf.shape, leaf.dtype) == (spec.shape, spec.dtype) or 1 / 0, less, smaller.state_like()
    )
    for layer, output in outputs_of(smaller.transformer).items():
        assert (head_output(less.params, layer)["origin"] != PADDING).sum() == sum(model.head_output.ranks[layer])
        assert alive(less.params["blocks"][layer]["attention"], output.layout).sum() == sum(
            model.head_output.ranks[layer]
        )
    metrics = jax.eval_shape(smaller.step, less, batch(1), smaller.given())[1]
    assert not any(name.startswith("rank/") for name in metrics)


@pytest.mark.parametrize("method", ["hard_concrete and heads", "nested", "energy, whitened"])
def test_a_cut_that_keeps_all_changes_no_output(method):
    """In other factors too: singular ones, or with the gates in B."""
    changes = FOUND | {"method": METHODS[method], "total_rank": 24}
    chosen = program(**SHAPE, model__head_output=changes)
    state = trained_state(chosen)
    model, less = cut(
        build_of(chosen), chosen.config.model, state, like_of(chosen), batch(0)[:, :-1], final=True, seed=3
    )
    np.testing.assert_allclose(logits(with_model(chosen, model), less), logits(chosen, state), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", ["energy", "hard_concrete"])
def test_moments_change_as_gradients_do(method):
    """The gradient at the new factors is the old one's transform: by that the first moments go on."""
    chosen = finding(method)
    state = trained_state(chosen)
    open_ = lambda _, name, role, leaf: np.linspace(-0.1, 0.1, 12) if name == "slow" and role == "value" else leaf
    state = carry(state, state, open_)

    def slopes(program, params):
        value = lambda own: jnp.sin(program.apply(own, batch(9)[:, :-1], None)).sum()
        found = jax.grad(value, allow_int=True)(params)
        return jax.tree.map(lambda slope, leaf: leaf if slope.dtype == jax.dtypes.float0 else slope, found, params)

    old = state._replace(memory={"gradient": slopes(chosen, state.params)})
    layers = _read(chosen.transformer, state.params, batch(0)[:, :-1], whitened=False)
    bases = {i: (singular if method == "energy" else with_gates_folded)(layer) for i, layer in layers.items()}
    model = with_ranks(chosen.config.model, chosen.config.model.head_output.all_ranks(chosen.config.model), fixed=True)
    after = with_model(chosen, model)
    like = after.state_like()
    new = _rebased(old, like._replace(memory={"gradient": like.params}), layers, bases)
    np.testing.assert_allclose(logits(after, new), logits(chosen, state), rtol=1e-9, atol=1e-9)
    want = slopes(after, new.params)
    for layer in (0, 1):
        for name in ("factor_a", "factor_b", "value_bias", "output_bias"):
            got = head_output(new.memory["gradient"], layer)[name]
            np.testing.assert_allclose(got, head_output(want, layer)[name], rtol=1e-7, atol=1e-9, err_msg=name)


def test_mean_squares_change_by_squared_coefficients():
    """As of gradients whose entries are not correlated: the mean over many draws."""
    chosen = finding("energy")
    state = trained_state(chosen)
    layers = _read(chosen.transformer, state.params, batch(0)[:, :-1], whitened=False)
    bases = {index: singular(layer) for index, layer in layers.items()}
    after = with_model(chosen, with_ranks(chosen.config.model, ((6, 6), (6, 6)), fixed=True))
    squares = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 4.0) if leaf.dtype == jnp.float64 else leaf, state.params)
    like = optax.tree.get(state.optimizer, "nu")
    old = state._replace(optimizer=optax.tree.set(state.optimizer, nu=_trained(squares, like)))
    new = optax.tree.get(_rebased(old, after.state_like(), layers, bases).optimizer, "nu")
    for index, layer in layers.items():
        for matrix, (_, places) in zip(bases[index].a_slope, layer.layout.places(), strict=True):
            want = np.broadcast_to(4.0 * (matrix**2).sum(axis=0), (16, places.stop - places.start))
            np.testing.assert_allclose(head_output(new, index)["factor_a"][:, places], want, rtol=1e-12)


def _trained(squares, like):
    """The leaves that an optimizer has."""
    return {
        key: _trained(squares[key], value) if isinstance(value, dict) else squares[key] for key, value in like.items()
    }


@pytest.mark.parametrize("whitened", [False, True])
def test_singular_directions_are_cut_where_it_costs_least(whitened):
    """Σ of what is cut is that of the smallest σ² of diag(γ) M, or of (E x xᵀ)^½ M: Eckart & Young, in the right norm.

    The whitened cut loses less of the layer's outputs than the plain one (SCIENCE: identity 10).
    """
    errors = {}
    for method in ("uniform", "energy, whitened"):
        chosen = finding(method)
        state = trained_state(chosen)
        tokens = batch(0)[:, :-1]
        moments = np.asarray(jax.jit(make_input_moments(chosen.transformer))(state.params, tokens))
        model = chosen.config.model.model_copy(
            update={"head_output": chosen.config.model.head_output.model_copy(update={"total_rank": 8})}
        )
        new, less = cut(build_of(chosen), model, state, like_of(chosen), tokens, final=True, seed=0)
        old_maps, new_maps = (
            [block.attention.head_output.factors().dense() for block in merged(p, at).blocks]
            for p, at in ((chosen, state), (with_model(chosen, new), less))
        )
        errors[method] = sum(
            np.einsum("hij,ik,hkj->", diff, moments[index], diff)
            for index, diff in enumerate(np.asarray(old_maps) - np.asarray(new_maps))
        )
    assert errors["energy, whitened"] < errors["uniform"]


def merged(chosen, state):
    return nnx.merge(nnx.split(chosen.transformer)[0], state.params)


def test_uniform_and_random_ranks():
    """Uniform: as equal as can be. Random: other ranks for other seeds, the same for the same."""
    ranks = {}
    for method, seed in (("uniform", 0), ("nested", 0), ("random", 0), ("random", 0), ("random", 1)):
        chosen = finding(method)
        model, _ = cut(
            build_of(chosen), chosen.config.model, trained_state(chosen), like_of(chosen), batch(0)[:, :-1],
            final=True, seed=seed,
        )  # fmt: skip
        ranks.setdefault((method, seed), []).append(model.head_output.ranks)
    assert ranks["uniform", 0] == ranks["nested", 0] == [((3, 3), (3, 2))]
    assert ranks["random", 0][0] == ranks["random", 0][1] != ranks["random", 1][0]


def test_nested_ranks_keep_the_first_directions_of_each_head():
    chosen = finding("nested")
    model, less = cut(
        build_of(chosen),
        chosen.config.model,
        trained_state(chosen),
        like_of(chosen),
        batch(0)[:, :-1],
        final=True,
        seed=0,
    )
    for layer, ranks in enumerate(model.head_output.ranks):
        origin = head_output(less.params, layer)["origin"]
        assert sorted(origin[origin != PADDING]) == sorted(number for rank in ranks for number in range(rank))


@pytest.mark.parametrize("method", ["hard_concrete", "budgeted", "energy"])
def test_a_cut_before_the_last_takes_what_is_closed_and_no_more(method):
    """Closed gates change nothing when they go; energy keeps the share of each layer's Σ σ²."""
    chosen = finding(method)
    state = trained_state(chosen)
    if method != "energy":
        name, shut = ("slow", -10.0) if method == "hard_concrete" else ("scale", 0.0)
        state = carry(
            state,
            state,
            lambda _, leaf, role, x: (
                np.where(np.arange(12) % 3 == 0, shut, 1) if leaf == name and role == "value" else x
            ),
        )
    model, less = cut(
        build_of(chosen), chosen.config.model, state, like_of(chosen), batch(0)[:, :-1], final=False, seed=0
    )
    assert model.head_output.method == chosen.config.model.head_output.method
    smaller = with_model(chosen, model)
    if method != "energy":
        assert model.head_output.ranks == ((4, 4), (4, 4))
        np.testing.assert_allclose(logits(smaller, less), logits(chosen, state), rtol=1e-9, atol=1e-9)
        return
    old, new = (
        [np.linalg.svd(stack(block), compute_uv=False) for block in merged(p, at).blocks]
        for p, at in ((chosen, state), (smaller, less))
    )
    for layer in (0, 1):
        squares, kept = np.sort((old[layer] ** 2).ravel())[::-1], sum(model.head_output.ranks[layer])
        assert squares[:kept].sum() >= 0.99 * squares.sum() > squares[: kept - 1].sum()
        np.testing.assert_allclose((new[layer] ** 2).sum(), squares[:kept].sum(), rtol=1e-9)


def stack(block):
    """diag(γ) [M_1 … M_g] of the query heads that share A."""
    factors = block.attention.head_output.factors()
    maps = np.asarray(block.attention_norm.gain[...])[None, :, None] * np.asarray(factors.a @ factors.b)
    return np.concatenate([maps[0::2], maps[1::2]], axis=2)


def test_a_permutation_of_directions_changes_nothing():
    """Neither the function, nor what a cut keeps, nor the gates' chance: all go by the original numbers."""
    chosen = finding("hard_concrete")
    state = trained_state(chosen)
    equals = lambda _, name, role, leaf: np.arange(12) // 4 * 0.1 if name == "slow" and role == "value" else leaf
    state = carry(state, state, equals)  # of equal gates the first by number are kept
    order = np.concatenate([np.random.default_rng(4).permutation(6), 6 + np.random.default_rng(5).permutation(6)])
    outputs = outputs_of(chosen.transformer)

    def permuted(layer, name, role, leaf):
        del role
        if name == "factor_b":
            rows = outputs[layer].layout.rows_of_places()
            out = np.empty_like(leaf)
            out[rows.ravel()] = leaf[rows[order].ravel()]
            return out
        if name in ("factor_a", "value_bias", "origin", "slow"):
            return leaf[..., order]
        return leaf

    other = carry(state, state, permuted)
    np.testing.assert_allclose(logits(chosen, other), logits(chosen, state), rtol=1e-10, atol=1e-10)
    losses = [jax.jit(chosen.step)(at, batch(3), chosen.given())[1]["train_loss"] for at in (state, other)]
    np.testing.assert_allclose(*losses, rtol=1e-10)
    found = [
        cut(build_of(chosen), chosen.config.model, at, like_of(chosen), batch(0)[:, :-1], final=True, seed=0)
        for at in (state, other)
    ]
    assert found[0][0] == found[1][0]
    numbers = [[sorted(head_output(s.params, layer)["origin"].tolist()) for layer in (0, 1)] for _, s in found]
    assert numbers[0] == numbers[1]
    outs = [logits(with_model(chosen, model), s) for model, s in found]
    np.testing.assert_allclose(*outs, rtol=1e-10, atol=1e-10)


@settings(max_examples=20)
@given(st.integers(1, 24), st.integers(0, 100))
def test_random_ranks_sum_to_the_total_within_their_limits(total, seed):
    chosen = finding("random")
    layers = _read(chosen.transformer, chosen.initial_params(), batch(0)[:, :-1], whitened=False)
    config = chosen.config.model.head_output.model_copy(update={"total_rank": total})
    ranks = _random_ranks(config, layers, seed)
    assert sum(ranks.values()) == total
    assert all(0 <= rank <= 6 for rank in ranks.values())


def test_a_model_s_history():
    chosen = finding("energy")
    history = [
        {"step": 10, "ranks": [[6, 5], [4, 3]], "final": False},
        {"step": 30, "ranks": [[6, 5], [0, 0]], "final": True},
    ]
    model = chosen.config.model
    assert model_at(model, history, 9) == model
    assert model_at(model, history, 10).head_output.ranks == ((6, 5), (4, 3))
    assert model_at(model, history, 29).head_output.method.kind == "energy"
    last = model_at(model, history, 30).head_output
    assert (last.ranks, last.method.kind, last.full_rank()) == (((6, 5), (0, 0)), "fixed", 6)

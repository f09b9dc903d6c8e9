"""Proximal steps and rebalancing, after real steps of a float64 run, against numpy on the whole maps."""

import functools

import jax
import numpy as np
import pytest

from tests.training.programs import DOUBLE, batch, drawn, flat, head_output, program, walk
from wmresearch.algebra import FactoredMatrix, proxes
from wmresearch.training.step import StepFacts

HEADS, KV, LEARNING_RATE = 4, 2, 0.05
SHAPE = {
    **DOUBLE, "model__n_heads": HEADS, "model__n_kv_heads": KV, "optimizer__learning_rate": LEARNING_RATE,
    "optimizer__schedule": {"kind": "constant", "warmup": 3},
}  # fmt: skip
FACTORIZED = {"kind": "factorized", "rank": 3}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def proximal(kind, strength, **more):
    return [{"kind": kind, "strength": strength, "step": "proximal", "schedule": {"kind": "warmup", "steps": 2}} | more]


def stacked(own):
    """A_k `[d, r]` and [B_1 … B_g] `[r, g·d]` of each key/value head."""
    a, b = own.get("factor_a", own.get("value")), own.get("factor_b", own.get("output"))
    b = b.reshape(HEADS, a.shape[2], -1)
    group = HEADS // KV
    return [(a[:, k], np.concatenate(b[k * group : (k + 1) * group], axis=1)) for k in range(KV)]


@functools.cache
def without(kind):
    """The states before and after two of the optimizer's steps alone."""
    chosen = program(**SHAPE, model__head_output=dict(FACTORIZED) if kind == "factorized" else {"kind": kind})
    return walk(chosen, drawn(chosen), 2)[0]


def soft(x, threshold):
    return np.sign(x) * np.maximum(np.abs(x) - threshold, 0)


def by_hand(kind, a, b, threshold, groups=None):
    """The maps after the step."""
    if kind == "l1":
        return soft(a, threshold) @ soft(b, threshold)
    whole = a @ b
    if kind == "nuclear":
        u, s, vt = np.linalg.svd(whole, full_matrices=False)
        return u * soft(s, threshold) @ vt
    lengths = np.linalg.norm(whole, axis=1 if groups == "rows" else 0, keepdims=True)
    return whole * np.maximum(1 - threshold / lengths, 0)


@pytest.mark.parametrize(
    ("output", "kind", "more"),
    [
        ("factorized", "nuclear", {}),
        ("standard", "nuclear", {}),
        ("factorized", "l1", {}),
        ("factorized", "group_lasso", {"groups": "rows"}),
        ("factorized", "group_lasso", {"groups": "columns"}),
    ],
)
def test_a_step_is_the_optimizers_and_then_the_prox_of_the_stacked_stored_factors(output, kind, more):
    """Query heads that share A are one matrix; all else is as it was, bit for bit."""
    _, before, after = without(output)
    chosen = program(
        **SHAPE, penalties=proximal(kind, 4.0, **more), training__steps=20,
        model__head_output=dict(FACTORIZED) if output == "factorized" else {"kind": output},
    )  # fmt: skip
    change = jax.jit(chosen.parts.after[0])
    facts = StepFacts(before.step, np.asarray(LEARNING_RATE * 2 / 4), before.params, None, None)
    new, metrics = change(after.params, facts)
    threshold = 4.0 * LEARNING_RATE / 2  # both warm up: step 1 has all of the strength and half of the rate
    np.testing.assert_allclose(metrics[f"penalty/{kind}_threshold"], threshold, rtol=1e-12)
    function = functools.partial(proxes.group_lasso, **more) if more else getattr(proxes, kind)
    for old, now in zip(stacked(head_output(after.params)), stacked(head_output(new)), strict=True):
        np.testing.assert_allclose(now[0] @ now[1], by_hand(kind, *old, threshold, more.get("groups")), atol=1e-12)
        assert np.abs(now[0] @ now[1] - old[0] @ old[1]).max() > 1e-3
        expected = jax.jit(function)(FactoredMatrix(*old), threshold)
        np.testing.assert_allclose(now[0], expected.a, atol=1e-12)
        np.testing.assert_allclose(now[1], expected.b, atol=1e-12)
    changed = {path for path, leaf in flat(new).items() if (leaf != flat(after.params)[path]).any()}
    assert changed <= {path for path in flat(new) if path.endswith(("factor_a", "factor_b", "value", "output"))}


def test_in_a_run_the_prox_follows_each_step_and_singular_values_become_exact_zeros():
    start, first, _ = without("factorized")
    chosen = program(
        **SHAPE, penalties=proximal("nuclear", 15.0), model__head_output=dict(FACTORIZED), training__steps=20
    )
    states, metrics = walk(chosen, start.params, 8)
    threshold = 15.0 / 2 * LEARNING_RATE / 4
    np.testing.assert_allclose(metrics[0]["penalty/nuclear_threshold"], threshold, rtol=1e-12)
    for old, now in zip(stacked(head_output(first.params)), stacked(head_output(states[1].params)), strict=True):
        np.testing.assert_allclose(now[0] @ now[1], by_hand("nuclear", *old, threshold), atol=1e-12)
    rest = {path: leaf for path, leaf in flat(states[1].params).items() if "factor_" not in path}
    for path, leaf in rest.items():
        np.testing.assert_allclose(leaf, flat(first.params)[path], rtol=1e-12, atol=1e-15, err_msg=path)
    for one, other in zip(jax.tree.leaves(states[1].optimizer), jax.tree.leaves(first.optimizer), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-15)
    ranks = []
    for state in states:
        for a, b in stacked(head_output(state.params)):
            singular = np.linalg.svd(np.linalg.qr(a)[1] @ np.linalg.qr(b.T)[1].T, compute_uv=False)
            ranks.append(int((singular > 1e-9).sum()))
            assert (singular[ranks[-1] :] < 1e-16).all(), "rounding, and no small number"
    assert ranks[:KV] == [3] * KV and ranks[-KV:] == [0] * KV and {1, 2} <= set(ranks)


def test_rebalancing_keeps_the_function_and_balances_at_its_steps_alone():
    chosen = program(**SHAPE, model__head_output=FACTORIZED | {"rebalance_every": 2})
    unbalanced = without("factorized")
    states, _ = walk(chosen, unbalanced[0].params, 2)

    def imbalance(params):
        return max(np.abs(a.T @ a - b @ b.T).max() for a, b in stacked(head_output(params)))

    logits = jax.jit(chosen.apply)
    for step in (1, 2):
        ours, theirs = (logits(each[step].params, batch(0)[:, :-1], None) for each in (states, unbalanced))
        np.testing.assert_allclose(ours, theirs, atol=1e-10)
    assert imbalance(states[1].params) > 0.1, "the first is not due"
    np.testing.assert_allclose(head_output(states[1].params)["factor_a"], head_output(unbalanced[1].params)["factor_a"])
    assert imbalance(states[2].params) < 1e-12
    for one, other in zip(jax.tree.leaves(states[2].optimizer), jax.tree.leaves(unbalanced[2].optimizer), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-15)

"""Which entries a sparse map has at each step: exact counts, drops and growth as published, nothing beside the mask."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import TypeAdapter

from tests.training.examples import config, same
from wmresearch.config.head_output import HeadOutput
from wmresearch.head_output.sparse_patterns import largest, largest_of_each, spread, unit_sizes, units_of
from wmresearch.model.cost import model_cost
from wmresearch.training.program import make_program
from wmresearch.training.sparsity import Sparsity
from wmresearch.training.step import StepFacts, make_dispatch

SMALL = {
    "model__mlp": "relu", "model__norm": "rmsnorm", "model__bias": False, "model__context": 8,
    "optimizer__clip_norm": None, "optimizer__schedule": "constant",
}  # fmt: skip
"""What compiles fastest."""
BLOCK = {"kind": "block", "size": 4}
TWO_OF_FOUR = {"kind": "n:m", "n": 2, "m": 4}
REGROWING = {"every": 3, "until": 0.8}
HALVING = {"begin": 0.0, "end": 0.6, "every": 2}
CASES = [
    {"density": 0.25},
    {"density": 0.25, "of": "factors", "rank": 4},
    {"density": 0.25, "of": "factors", "rank": 4, "allocation": "global", "method": {"kind": "set", **REGROWING}},
    {"density": 0.25, "pattern": BLOCK},
    {"density": 0.25, "pattern": BLOCK, "method": {"kind": "set", **REGROWING}},
    {"density": 0.25, "pattern": BLOCK, "method": {"kind": "rigl", **REGROWING}},
    {"density": 0.3, "method": {"kind": "set", **REGROWING}},
    {"density": 0.3, "allocation": "global", "method": {"kind": "rigl", **REGROWING}},
    {"density": 0.3, "method": "ste"},
    {"density": 0.3, "allocation": "global", "method": {"kind": "ste", "every": 5}},
    {"density": 0.3, "method": {"kind": "magnitude", **HALVING}},
    {"density": 0.25, "pattern": BLOCK, "method": {"kind": "magnitude", **HALVING}},
    {"density": 0.3, "method": {"kind": "proximal", "strength": 0.1}},
    {"density": 0.25, "pattern": BLOCK, "method": {"kind": "proximal", "strength": 0.1}},
    {"pattern": TWO_OF_FOUR},
    {"pattern": TWO_OF_FOUR, "of": "factors", "rank": 4},
    {"pattern": TWO_OF_FOUR, "method": "ste"},
    {"pattern": TWO_OF_FOUR, "method": {"kind": "magnitude", **HALVING}},
    {"pattern": TWO_OF_FOUR, "method": {"kind": "proximal", "strength": 0.1}},
]


def sparse(setting):
    return {"kind": "sparse", **setting}


def masks_of(params):
    """Mask and weight of everything under a mask, by path."""
    flat = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    return {name: (np.asarray(flat[name]), np.asarray(flat[name[:-2] + "_mask']"])) for name in flat
            if name[:-2] + "_mask']" in flat}  # fmt: skip


def trained(chosen, *numbers):
    """The parameters after so many steps of a run, for each number (at most 20)."""
    program = make_program(chosen, 31)
    tokens = np.random.default_rng(0).integers(0, 31, (20, 4, 9)).astype(np.int32)
    dispatch, found = make_dispatch(program.step, 20), []
    for steps in numbers:
        state, metrics = dispatch(program.initial_state(), tokens, steps, program.given())
        assert np.isfinite(metrics["train_loss"]).all()
        found.append(state.params)
    return found


@pytest.mark.parametrize("setting", CASES, ids=str)
def test_a_run_ends_with_exactly_the_entries_that_were_asked_for(setting, text):
    layers = 2 if setting.get("allocation") == "global" else 1
    chosen = config(text, model__head_output=sparse(setting), model__n_layers=layers, **SMALL)
    (params,) = trained(chosen, 20)
    output = chosen.model.head_output
    found = masks_of(params)
    cost = model_cost(chosen.model, 31)
    assert cost.masked_dense != output.stores_blocks
    if output.stores_blocks:
        stored = [block["attention"]["head_output"] for block in params["blocks"].values()]
        assert cost.head_output_nonzeros == cost.head_output_parameters == sum(layer["blocks"].size for layer in stored)
        for layer in stored:
            assert layer["blocks"].shape == (2, 4, 4, 4)
            places = np.asarray(layer["rows"]) * 4 + np.asarray(layer["columns"])
            assert all(len(set(row)) == 4 for row in places.tolist()), "no two blocks at one place"
        return
    assert cost.head_output_nonzeros == sum(mask.sum() for _, mask in found.values())
    counts = {name: mask.sum() / mask.size for name, (_, mask) in found.items()}
    if output.allocation == "global":
        total = sum(mask.sum() for _, mask in found.values()) / sum(mask.size for _, mask in found.values())
        assert total == pytest.approx(output.kept, abs=2e-3)
    else:
        assert all(share == pytest.approx(output.kept, abs=2e-3) for share in counts.values())
    if output.pattern.kind == "n:m":
        for _, mask in found.values():
            h, n, m = mask.shape
            assert (mask.reshape(h, n // 4, 4, m).sum(axis=2) == 2).all()
    if output.pattern.kind == "block":
        for _, mask in found.values():
            h, n, m = mask.shape
            assert set(np.unique(mask.reshape(h, n // 4, 4, m // 4, 4).sum(axis=(2, 4)))) <= {0, 16}
    if output.method.kind != "ste":
        assert all((weight[~mask] == 0).all() for weight, mask in found.values())
    else:
        assert any((weight[~mask] != 0).any() for weight, mask in found.values())


def test_stored_blocks_move_and_start_from_zero_where_they_go(text):
    setting = {"density": 0.25, "pattern": BLOCK, "method": {"kind": "set", "every": 1, "share": 0.9, "until": 1.0}}
    small = SMALL | {"optimizer__learning_rate": 1e-9}
    chosen = config(text, model__head_output=sparse(setting), **small)
    start, one = (params["blocks"][0]["attention"]["head_output"] for params in trained(chosen, 0, 1))
    old, new = (np.asarray(layer["rows"]) * 4 + np.asarray(layer["columns"]) for layer in (start, one))
    moved = old != new
    empty = (np.asarray(one["blocks"]) == 0).all(axis=(2, 3))
    assert (moved <= empty).all() and (empty.sum(axis=1) == int(0.9 * (1 + np.cos(np.pi / 20)) / 2 * 4)).all()
    norms = np.linalg.norm(start["blocks"], axis=(2, 3))
    assert (norms[~empty].reshape(2, -1).min(axis=1) > norms[empty].reshape(2, -1).max(axis=1)).all()
    forced = config(text, model__head_output=sparse({**setting, "density": 1.0}), **small)
    full = trained(forced, 1)[0]["blocks"][0]["attention"]["head_output"]
    places = np.asarray(full["rows"]) * 4 + np.asarray(full["columns"])
    assert (np.sort(places, axis=1) == np.arange(16)).all(), "a full grid has no other place to go"


def of_map(value, **more):
    return {"blocks": {0: {"attention": {"head_output": {"map": jnp.asarray(value), **more}}}}}


def layer(weight, mask):
    return of_map(weight, map_mask=jnp.asarray(mask))


def change(setting, weight, mask, gradient, step, steps=100, rate=0.1):
    output = TypeAdapter(HeadOutput).validate_python(sparse(setting))
    sparsity = Sparsity(output, steps, weight.shape[1])
    facts = StepFacts(jnp.int32(step), jnp.float32(rate), {}, of_map(gradient), jax.random.key(7))
    params, metrics = jax.jit(sparsity)(layer(weight, mask), facts)
    found = params["blocks"][0]["attention"]["head_output"]
    return np.asarray(found["map"]), np.asarray(found["map_mask"]), metrics


@pytest.fixture
def arrays():
    draw = np.random.default_rng(0)
    weight, gradient = draw.standard_normal((2, 2, 8, 8)).astype(np.float32)
    mask = np.zeros(weight.size, bool)
    mask[draw.permutation(weight.size)[:40]] = True
    mask = mask.reshape(weight.shape)
    return np.where(mask, weight, 0), mask, jnp.asarray(gradient)


@pytest.mark.parametrize("kind", ["set", "rigl"])
def test_the_smallest_go_and_as_many_grow_from_zero(kind, arrays):
    weight, mask, gradient = arrays
    setting = {"density": 40 / 128, "method": {"kind": kind, "every": 10, "share": 0.5, "until": 0.8}}
    new, new_mask, _ = change(setting, weight, mask, gradient, step=9)
    moved = int(0.5 * (1 + np.cos(np.pi * 10 / 80)) / 2 * 40)
    assert moved == 19
    cutoff = np.sort(np.abs(weight[mask]))[moved]
    stays = mask & (np.abs(weight) >= cutoff)
    assert (new_mask & stays).sum() == stays.sum() == 40 - moved
    assert new_mask.sum() == 40
    assert (new[stays] == weight[stays]).all()
    grown = new_mask & ~stays
    assert (new[~stays] == 0).all()
    if kind == "rigl":
        smallest_grown = np.abs(np.asarray(gradient))[grown].min()
        assert np.abs(np.asarray(gradient))[~new_mask].max() <= smallest_grown
    same_weight, same_mask, _ = change(setting, weight, mask, gradient, step=10)
    assert (same_mask == mask).all() and (same_weight == weight).all(), "not due"
    _, late, _ = change(setting, weight, mask, gradient, step=79)
    assert (late == mask).all(), "no exchange from `until` on"


def test_random_growth_differs_from_step_to_step(arrays):
    weight, mask, gradient = arrays
    setting = {"density": 40 / 128, "method": {"kind": "set", "every": 1, "share": 0.5}}
    output = TypeAdapter(HeadOutput).validate_python(sparse(setting))
    grown = []
    for key in (0, 1):
        facts = StepFacts(jnp.int32(5), jnp.float32(0.1), {}, of_map(gradient), jax.random.key(key))
        params, _ = jax.jit(Sparsity(output, 100, 8))(layer(weight, mask), facts)
        grown.append(np.asarray(params["blocks"][0]["attention"]["head_output"]["map_mask"]))
    assert (grown[0] != grown[1]).any()


def test_magnitude_cuts_by_the_cubic_schedule_and_for_good(arrays):
    weight = arrays[0] + np.where(
        arrays[1], 0, 0.01 * np.random.default_rng(1).standard_normal(arrays[0].shape)
    ).astype(np.float32)
    setting = {"density": 0.25, "method": {"kind": "magnitude", "begin": 0.1, "end": 0.5, "every": 10}}
    full = np.ones_like(arrays[1])
    for step, done in ((4, None), (9, 0.0), (29, 0.5), (49, 1.0)):
        new, mask, metrics = change(setting, weight, full, arrays[2], step)
        cut = 0 if done is None else 0.75 * (1 - (1 - done) ** 3)
        expected = 128 - round(128 * cut)
        assert mask.sum() == expected
        assert np.abs(new[mask]).min() >= np.abs(weight[~mask]).max(initial=0)
        np.testing.assert_allclose(metrics["sparsity/density"], expected / 128)


def test_the_soft_threshold_is_that_of_the_l1_norm_until_its_end_and_only_the_largest_are_left(arrays):
    setting = {"density": 0.25, "method": {"kind": "proximal", "strength": 2.0, "end": 0.5}}
    weight, full = np.asarray(arrays[2]), np.ones_like(arrays[1])
    new, mask, _ = change(setting, weight, full, arrays[2], step=3)
    np.testing.assert_allclose(new, np.sign(weight) * np.maximum(np.abs(weight) - 0.2, 0), atol=1e-6)
    assert mask.all()
    new, mask, _ = change(setting, weight, full, arrays[2], step=49)
    assert mask.sum() == 32 and (new[mask] == weight[mask]).all() and (new[~mask] == 0).all()
    blocks = {"density": 0.25, "pattern": BLOCK, "method": setting["method"]}
    new, _, _ = change(blocks, weight, full, arrays[2], step=3)
    norm = np.linalg.norm(weight[1, 4:, :4])
    np.testing.assert_allclose(new[1, 4:, :4], weight[1, 4:, :4] * (1 - 0.2 / norm), rtol=1e-5)


def test_straight_through_the_gradient_is_that_of_the_dense_map_and_masked_methods_follow_only_what_is_used(text):
    for method, all_move in (("ste", True), ("static", False)):
        chosen = config(text, model__head_output=sparse({"density": 0.3, "method": method}), **SMALL)
        program = make_program(chosen, 31)
        state = program.initial_state()
        tokens = np.random.default_rng(0).integers(0, 31, (4, 9)).astype(np.int32)
        after, _ = jax.jit(program.step)(state, tokens, program.given())
        before, now = (s.params["blocks"][0]["attention"]["head_output"] for s in (state, after))
        outside = ~np.asarray(after.params["blocks"][0]["attention"]["head_output"]["map_mask"])
        moved = np.asarray(before["map"]) != np.asarray(now["map"])
        if all_move:
            assert moved.mean() > 0.99
        else:
            assert (np.asarray(now["map"])[outside] == 0).all()
            assert same(before["map_mask"], now["map_mask"])


def test_units_of_each_pattern():
    x = np.random.default_rng(0).standard_normal((3, 8, 12)).astype(np.float32)
    block = TypeAdapter(HeadOutput).validate_python(sparse({"density": 0.5, "pattern": BLOCK})).pattern
    sizes = np.asarray(unit_sizes(block, x))
    assert sizes.shape == (3, 2, 3)
    np.testing.assert_allclose(sizes[2, 1, 2], np.linalg.norm(x[2, 4:, 8:]), rtol=1e-6)
    units = np.asarray(sizes > np.median(sizes))
    assert (np.asarray(units_of(block, spread(block, jnp.asarray(units)))) == units).all()
    two = np.asarray(largest_of_each(jnp.abs(x), 2, 4)).reshape(3, 2, 4, 12)
    assert (two.sum(axis=2) == 2).all()
    absolute = np.abs(x).reshape(3, 2, 4, 12)
    assert (np.where(two, absolute, np.inf).min(axis=2) >= np.where(two, 0, absolute).max(axis=2)).all()


@pytest.mark.parametrize("count", [0, 1, 5, 9])
def test_the_largest_are_exactly_so_many_also_among_equals(count):
    sizes = jnp.asarray([3.0, 1, 3, 0, 0, 2, 3, 0, 1])
    chosen = np.asarray(largest(sizes, count))
    assert chosen.sum() == count
    assert sorted(np.asarray(sizes)[chosen])[::-1] == sorted(np.asarray(sizes))[::-1][:count]

"""Muon against its formula in numpy, applied to the matrices that each parameter is made of."""

import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.head_output.test_orders import CASES, NAMES, layer
from tests.training.examples import config
from tests.training.programs import DOUBLE, FAST_TO_COMPILE, drawn, flat, program
from wmresearch.config.optimizer import MuonConfig
from wmresearch.head_output.weights import abstract_params, declared, split
from wmresearch.training.loop import train
from wmresearch.training.optimizers import make_optimizer, muon_shape_factors
from wmresearch.training.parameters import parameter_facts, trained

D, HEADS, KV, WIDTH, RANK = 16, 4, 2, 4, 3


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def columns(leaf):
    """`[d, h, r]`, each head's columns."""
    return [leaf[:, head] for head in range(leaf.shape[1])]


def rows(width):
    """`[h·r, d]` or `[h, r, d]`, each head's rows."""
    return lambda leaf: list(leaf.reshape(-1, width, leaf.shape[-1]))


whole = lambda leaf: [leaf.reshape(leaf.shape[0], -1)]
stacked = lambda leaf: [leaf.reshape(-1, leaf.shape[-1])]
MATRICES = {
    "query": (whole, columns), "key": (whole, columns), "value": (whole, columns), "factor_a": (whole, columns),
    "output": (stacked, rows(WIDTH)), "factor_b": (stacked, rows(RANK)),
    "up": (whole, whole), "down": (whole, whole),
}  # fmt: skip
"""Parameter → the matrices in it, fused and per head."""


@functools.cache
def updates(kind, heads, update_rms=None):
    """The second update of each parameter, at learning rate 1 and for AdamW's 0.25; the gradients before it."""
    output = {"kind": kind} | ({"rank": RANK} if kind == "factorized" else {})
    chosen = program(
        **DOUBLE, model__d_model=D, model__n_heads=HEADS, model__n_kv_heads=KV, model__head_output=output,
        model__tie_embeddings=False, optimizer__kind="muon", optimizer__heads=heads, optimizer__momentum=0.9,
        optimizer__clip_norm=None, optimizer__weight_decay=0.0, optimizer__update_rms=update_rms,
        optimizer__learning_rate=1.0, optimizer__adam_learning_rate=0.25, optimizer__schedule="constant",
    )  # fmt: skip
    params, *gradients = (drawn(chosen, seed=seed) for seed in range(3))

    @functools.partial(jax.jit, compiler_options=FAST_TO_COMPILE)
    def second(params, first, then):
        _, state = chosen.optimizer.update(first, chosen.optimizer.init(params), params)
        return chosen.optimizer.update(then, state, params)[0]

    found = jax.tree.map(np.asarray, (second(params, *gradients), gradients))
    return flat(found[0]), [flat(gradient) for gradient in found[1]], chosen


def by_hand(first, then):
    """The second update of one matrix: Nesterov's momentum, corrected for its start, and five Newton–Schulz steps."""
    moment = 0.9 * 0.1 * first + 0.1 * then
    x = 0.9 * moment / (1 - 0.9**3) + 0.1 * then / (1 - 0.9**2)
    x = x / (np.linalg.norm(x) + 1e-8)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


@pytest.mark.parametrize(
    ("kind", "heads"),
    [("standard", "fused"), ("standard", "per_head"), ("factorized", "fused"), ("factorized", "per_head")],
)
def test_each_matrix_is_orthogonalized_as_one_and_no_other(kind, heads):
    found, (first, then), _ = updates(kind, heads)
    seen = 0
    for path, update in found.items():
        views = MATRICES.get(path.rpartition("/")[2])
        if views is None or path == "logits":
            continue
        view = views[heads == "per_head"]
        for ours, before, now in zip(*map(view, (update, first[path], then[path])), strict=True):
            factor = math.sqrt(max(1, ours.shape[1] / ours.shape[0]))
            np.testing.assert_allclose(-ours, factor * by_hand(before, now), rtol=1e-9, atol=1e-11, err_msg=path)
            spread = np.linalg.svd(ours, compute_uv=False) / factor
            assert spread.min() > 0.3 and spread.max() < 1.3, f"{path}: not orthogonal up to its factor"
            seen += 1
    assert seen == (6 if heads == "fused" else HEADS + KV + KV + HEADS + 2)


def test_what_is_no_matrix_within_a_layer_is_adams_at_its_own_learning_rate():
    found, gradients, chosen = updates("standard", "fused")
    adam = optax.adam(0.25, *chosen.config.optimizer.betas)
    others = {path for path in found if path.rpartition("/")[2] not in MATRICES}
    assert {"embedding", "positions", "logits", "final_norm/gain"} < others
    first, then = ({path: gradient[path] for path in others} for gradient in gradients)
    _, state = jax.jit(adam.update)(first, adam.init(first))
    expected, _ = jax.jit(adam.update)(then, state)
    for path in others:
        np.testing.assert_allclose(found[path], expected[path], rtol=1e-10, err_msg=path)


def test_with_update_rms_the_entries_of_every_update_are_of_that_size():
    found, _, _ = updates("factorized", "per_head", 0.2)
    for path, update in found.items():
        views = MATRICES.get(path.rpartition("/")[2])
        for matrix in views[1](update) if views and path != "logits" else ():
            assert 0.1 < float(jnp.sqrt(jnp.mean(matrix**2))) < 0.25, path


@pytest.mark.parametrize(
    ("heads", "rms", "output", "value"),
    [
        ("fused", None, 1.0, 1.0),
        ("per_head", None, math.sqrt(D / WIDTH), 1.0),
        ("fused", 0.2, 0.2 * math.sqrt(D), 0.2 * math.sqrt(D)),
        ("per_head", 0.2, 0.2 * math.sqrt(D), 0.2 * math.sqrt(D)),
    ],
)
def test_shape_factors_are_those_documented(heads, rms, output, value):
    _, _, chosen = updates("standard", "fused")
    optimizer = MuonConfig(learning_rate=1.0, heads=heads, update_rms=rms)
    factors = muon_shape_factors(optimizer, declared(chosen.transformer))
    own = "blocks/0/attention/head_output"
    assert factors[f"{own}/output"] == pytest.approx(output)
    assert factors[f"{own}/value"] == pytest.approx(value)
    assert {path.rpartition("/")[2] for path in factors} == {"query", "key", "value", "output", "up", "down"}
    up, down = (factors[f"blocks/0/mlp/{name}"] for name in ("up", "down"))
    assert (up, down) == (pytest.approx(2 if rms is None else rms * 8), pytest.approx(1 if rms is None else rms * 8))


@pytest.mark.parametrize("heads", ["fused", "per_head"])
@pytest.mark.parametrize(("kind", "setting"), CASES, ids=NAMES)
def test_every_kind_of_head_output_takes_a_step(kind, setting, heads):
    """Finite, of the same shapes and types."""
    module = nnx.List([layer(kind, setting).head_output])
    optimizer = make_optimizer(MuonConfig(learning_rate=0.1, heads=heads), 4, parameter_facts(module))
    abstract = abstract_params(module)
    draw = np.random.default_rng(0)
    drawn = jax.tree.map(lambda leaf: draw.standard_normal(leaf.shape), split(abstract, trained(module))[0])

    def step(params):
        return optimizer.update(params, optimizer.init(params), params)[0]

    shapes = jax.eval_shape(step, drawn)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), shapes) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), drawn
    )
    if heads == "per_head":  # compiling is slow, and what is fused is tried above
        updates = jax.jit(step, compiler_options=FAST_TO_COMPILE)(drawn)
        assert all(jnp.isfinite(leaf).all() and leaf.any() for leaf in jax.tree.leaves(updates))


def test_a_run_states_its_shape_factors(text, tmp_path):
    chosen = config(
        text, training={"steps": 2, "diagnostics": False}, optimizer__kind="muon", optimizer__heads="per_head",
        optimizer__schedule="constant", model__bias=False,
    )  # fmt: skip
    assert train(chosen, tmp_path)["state"] == "finished"
    factors = json.loads((tmp_path / "manifest.json").read_text())["muon_shape_factors"]
    own = {path.rpartition("/")[2]: factor for path, factor in factors.items()}
    expected = {"query": 1, "key": 1, "value": 1, "output": math.sqrt(2), "up": 2, "down": 1}
    assert own == pytest.approx(expected)

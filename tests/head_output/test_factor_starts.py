"""How the factors of `factorized` start, ranks by layer and head included."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.training.programs import DOUBLE, drawn, head_output, program, walk
from wmresearch.config.head_output import FactorizedConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output import make_head_output
from wmresearch.head_output.weights import Normal, count_nonzeros, initialize
from wmresearch.model.cost import model_cost

D, HEADS = 16, 4


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def start(kv_heads=HEADS, d=D, seed=0, bias=False, **settings):
    """A `[d, k, r]` and B `[h, r, d]`, and the config of the model."""
    model = ModelConfig(
        d_model=d, n_layers=1, n_heads=HEADS, n_kv_heads=kv_heads, context=8, param_dtype="float64", bias=bias,
        head_output=FactorizedConfig.model_validate(settings),
    )  # fmt: skip
    found = initialize(make_head_output(model), jax.random.key(seed))
    return np.asarray(found["factor_a"]), np.asarray(found["factor_b"]), model


def stacked(a, b):
    """A_k and [B_1 … B_g] of each key/value head."""
    group = HEADS // a.shape[1]
    return [(a[:, k], np.concatenate(b[k * group : (k + 1) * group], axis=1)) for k in range(a.shape[1])]


def test_the_matched_start_is_gaussian_and_the_default():
    a, b, model = start(rank=5)
    again = start(rank=5, init={"kind": "matched"})
    assert (a == again[0]).all() and (b == again[1]).all()
    assert make_head_output(model).factor_a.init == Normal(model.init_std * (model.head_width / 5) ** 0.25)
    assert make_head_output(model).factor_b.init == Normal(model.residual_std * (model.head_width / 5) ** 0.25)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_the_spectral_start_is_balanced_and_as_large_as_the_standard_maps(kv_heads):
    a, b, model = start(kv_heads, d=64, rank=3, init="spectral")
    for read, write in stacked(a, b):
        np.testing.assert_allclose(read.T @ read, write @ write.T, atol=1e-15)
        s = np.linalg.svd(read @ write, compute_uv=False)
        np.testing.assert_allclose(np.diag(read.T @ read), s[:3], atol=1e-15)
        assert np.abs(read.T @ read - np.diag(s[:3])).max() < 1e-15, "the columns are singular vectors"
    norms = [np.linalg.norm(read @ write) for read, write in stacked(a, b)]
    group = HEADS // kv_heads
    assert np.sqrt(np.mean(np.square(norms)) / group) == pytest.approx(64 * model.product_std, rel=0.05)


@pytest.mark.parametrize(("condition", "kv_heads"), [(1, 4), (10, 2), (1000.0, 4)])
def test_a_gauge_of_condition_kappa_leaves_the_maps_as_the_matched_ones(condition, kv_heads):
    a, b, _ = start(kv_heads, rank=3)
    gauged_a, gauged_b, _ = start(kv_heads, rank=3, init={"gauge": condition})
    for (read, write), (new_read, new_write) in zip(stacked(a, b), stacked(gauged_a, gauged_b), strict=True):
        np.testing.assert_allclose(new_read @ new_write, read @ write, rtol=1e-10, atol=1e-10 * np.abs(read).max())
        g = np.linalg.lstsq(read, new_read, rcond=None)[0]
        np.testing.assert_allclose(read @ g, new_read, atol=1e-13 * condition)
        singular = np.linalg.svd(g, compute_uv=False)
        assert singular[0] / singular[-1] == pytest.approx(condition, rel=1e-9)
        np.testing.assert_allclose(np.log(singular), np.linspace(0.5, -0.5, 3) * np.log(condition), atol=1e-8)
        np.testing.assert_allclose(g, g.T, atol=1e-10 * condition)


def test_every_start_is_finite_in_every_type_and_at_the_smallest_ranks():
    for dtype, init, rank in itertools.product(
        ("bfloat16", "float16", "float32"), ("matched", "spectral", {"gauge": 10}), (1, D)
    ):
        model = ModelConfig(
            d_model=D, n_layers=1, n_heads=HEADS, context=8, param_dtype=dtype,
            head_output=FactorizedConfig.model_validate({"rank": rank, "init": init}),
        )  # fmt: skip
        made = jax.eval_shape(lambda model=model: initialize(make_head_output(model), jax.random.key(0)))
        assert {leaf.dtype for leaf in jax.tree.leaves(made)} == {jnp.dtype(dtype)}
        if rank == 1 and dtype == "bfloat16":
            made = initialize(make_head_output(model), jax.random.key(0))
            assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(made))
            assert all(leaf.any() for name, leaf in made.items() if "factor" in name)


RANKS = [[3, 1], [0, 2]]


def beyond(ranks, own):
    """The entries beyond each head's rank."""
    group = HEADS // len(ranks)
    parts = [own[name][..., k, rank:] for k, rank in enumerate(ranks) for name in ("factor_a", "value_bias")]
    return parts + [own["factor_b"][h, ranks[h // group] :] for h in range(HEADS)]


def padded(params):
    """The parameters with zeros beyond each head's rank."""
    for layer, ranks in enumerate(RANKS):
        own = head_output(params, layer)
        own = {name: leaf.copy() for name, leaf in own.items()}
        for part in beyond(ranks, own):
            part[...] = 0
        params["blocks"][layer]["attention"]["head_output"] = jax.tree.map(jnp.asarray, own)
    return params


def with_ranks(**more):
    return program(
        **DOUBLE, model__n_layers=2, model__n_heads=HEADS, model__n_kv_heads=2,
        model__head_output={"kind": "factorized", "ranks": RANKS} | more.pop("output", {}),
        optimizer__schedule="constant", optimizer__weight_decay=0.5, **more,
    )  # fmt: skip


PENALTIES = [
    {"kind": "nuclear", "strength": 0.01}, {"kind": "schatten", "p": 0.5, "strength": 0.01},
    {"kind": "orthogonal_factors", "strength": 0.01}, {"kind": "factor_decay", "strength": 0.01},
]  # fmt: skip
"""Those whose gradients divide by something that a padded column makes zero, and the one of the factors' size."""


@pytest.mark.parametrize(
    "more",
    [
        {"penalties": PENALTIES, "optimizer__frobenius_decay": 0.1, "output": {"rebalance_every": 3}},
        {"optimizer__kind": "muon", "optimizer__heads": "fused"},
    ],
    ids=["adamw, penalties, rebalanced", "muon"],
)
def test_what_is_padded_stays_exactly_zero(more):
    chosen = with_ranks(**more)
    states, _ = walk(chosen, padded(drawn(chosen)), 20)
    for layer, ranks in enumerate(RANKS):
        now, old = (head_output(each.params, layer) for each in (states[-1], states[0]))
        assert sum(part.size for part in beyond(ranks, now)) > 0
        assert not any(part.any() for part in beyond(ranks, now))
        assert all(np.isfinite(leaf).all() for leaf in now.values())
        moved = [(now[name] != old[name]).sum() for name in ("factor_a", "factor_b")]
        d = now["factor_a"].shape[0]
        assert moved == [d * sum(ranks), 2 * d * sum(ranks)], "and everything else moves"


def test_padded_heads_are_heads_cut_to_their_ranks():
    """y = Σ_i P_i X A_i B_i with A_i and B_i of the head's own rank; a head of rank 0 adds nothing."""
    ranks = (3, 0)
    model = ModelConfig(
        d_model=D, n_layers=1, n_heads=HEADS, n_kv_heads=2, context=8, bias=False, param_dtype="float64",
        dtype="float64", head_output=FactorizedConfig(ranks=(ranks,)),
    )  # fmt: skip
    module = make_head_output(model)
    module = nnx.merge(nnx.split(module)[0], initialize(module, jax.random.key(0)))
    draw = np.random.default_rng(0)
    x, p = draw.standard_normal((1, 8, D)), draw.random((1, HEADS, 8, 8))
    mix = lambda value: jnp.einsum("bhts,bshr->bthr", p, jnp.repeat(value, HEADS // value.shape[2], axis=2))
    a, b = np.asarray(module.factor_a[...]), np.asarray(module.factor_b[...])
    expected = sum(p[0, h] @ x[0] @ a[:, h // 2, : ranks[h // 2]] @ b[h, : ranks[h // 2]] for h in range(HEADS))
    np.testing.assert_allclose(np.asarray(module(jnp.asarray(x), mix))[0], expected, rtol=1e-12, atol=1e-15)
    assert abs(expected).max() > 0


def test_counts_of_ranks_are_of_what_is_stored_and_of_what_is_not_zero():
    chosen = with_ranks(output={"init": "spectral"})
    outputs = nnx.List([block.attention.head_output for block in chosen.transformer.blocks])
    own = list(jax.jit(lambda: initialize(outputs, jax.random.key(0)))().values())
    held = [leaf for each in own for name, leaf in each.items() if "factor" in name]
    biases = sum(leaf.size for each in own for name, leaf in each.items() if "bias" in name)
    assert count_nonzeros(outputs) == sum((leaf != 0).sum() for leaf in held) + biases == 16 * 3 * 6 + biases
    cost = model_cost(chosen.config.model, 31)
    assert cost.head_output_parameters == sum(leaf.size for each in own for leaf in each.values())

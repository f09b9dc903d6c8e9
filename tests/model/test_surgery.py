"""Surgery on heads is exact: what is not cut stays the same function, what is cut is what was to be cut."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import TypeAdapter

from tests.head_output.test_orders import CASES, NAMES, randomized
from tests.training.examples import same
from wmresearch.config.head_output import HeadOutput
from wmresearch.config.model import ModelConfig
from wmresearch.model import Transformer, make_apply
from wmresearch.model import attention as attention_module
from wmresearch.model.maps import make_maps
from wmresearch.model.surgery import dense_config, make_read_heads, operate, weakest

TOKENS = np.random.default_rng(5).integers(0, 11, (2, 12))


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def model_of(kind, setting, bias=True, **changes):
    config = TypeAdapter(HeadOutput).validate_python({"kind": kind, "order": "attend_then_write", **setting})
    return ModelConfig(
        **{"d_model": 16, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "context": 12, "bias": bias}
        | {"param_dtype": "float64", "dtype": "float64", "head_output": config}
        | changes
    )


def random_params(model):
    made = jax.tree.map(np.asarray, randomized(Transformer(model, 11)))
    params = jax.tree.map(lambda leaf: 0.5 * leaf if np.issubdtype(leaf.dtype, np.floating) else leaf, made)
    params["blocks"][1]["attention_norm"]["gain"][[3, 4]] = 0.0, 1e-200
    return params


@functools.cache  # one compilation for all tests of a model
def compiled(model):
    """Parameters, which heads gather anything `[l, h]` → logits."""
    apply = make_apply(Transformer(model, 11), model.dtype)
    real = attention_module.attention

    def masked(params, masks_lh):
        layers = iter(masks_lh)  # they are traced in their order

        def attention(*arguments):
            mix, mask_h = real(*arguments), next(layers)
            return lambda value, heads=slice(None): mix(value, heads) * mask_h[heads][None, None, :, None]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attention_module, "attention", attention)
            return apply(params, TOKENS)

    return jax.jit(masked)


@functools.cache
def reading(model):
    """Parameters → what its heads do, and the maps with the gain folded in."""
    transformer = Transformer(model, 11)
    read_heads, maps = make_read_heads(transformer), make_maps(transformer)
    return jax.jit(lambda params: (read_heads(params), maps(params)))


def logits(model, params, masks=((1.0,) * 4,) * 2):
    return np.asarray(compiled(model)(params, np.asarray(masks)))


def read(model, params):
    return reading(model)(params)[0]


def equal(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10 * np.abs(want).max())


WITHOUT_BIASES = [("standard", {}, False), ("shared_basis", {"rank": 3, "share": "model"}, False)]


@pytest.mark.parametrize(
    ("kind", "setting", "bias"),
    [(*case, True) for case in CASES] + WITHOUT_BIASES,
    ids=NAMES + [f"{kind} without biases" for kind, _, _ in WITHOUT_BIASES],
)
def test_nothing_dropped_at_full_rank_is_the_same_function(kind, setting, bias):
    model = model_of(kind, setting, bias)
    params = random_params(model)
    heads = read(model, params)
    whole, full = operate(params, heads), operate(params, heads, rank=16)
    assert same(whole, full)
    equal(logits(dense_config(model), whole), logits(model, params))


@pytest.mark.parametrize(("kind", "setting"), CASES, ids=NAMES)
def test_a_dropped_head_writes_nothing(kind, setting):
    model = model_of(kind, setting)
    params = random_params(model)
    got = logits(dense_config(model), operate(params, read(model, params), dropped=[(0, 1), (1, 0), (1, 3)]))
    assert not np.allclose(got, logits(model, params), rtol=1e-3)
    equal(got, logits(model, params, [[1.0, 0, 1, 1], [0.0, 1, 1, 0]]))


@pytest.mark.parametrize(
    ("kind", "setting", "name"),
    [("standard", {}, "output"), ("factorized", {"rank": 3}, "factor_b"), ("dense", {}, "map")],
)
def test_a_dropped_head_is_one_whose_writing_weights_are_zero(kind, setting, name):
    model = model_of(kind, setting)
    params = random_params(model)
    got = logits(dense_config(model), operate(params, read(model, params), dropped=[(1, 2)]))
    own = params["blocks"][1]["attention"]["head_output"]
    own[name].reshape(4, -1, 16)[2] = 0.0
    equal(got, logits(model, params))


@jax.jit
def truncated_to_two(maps):
    return maps.truncate(2).dense()


@pytest.mark.parametrize(("kind", "setting"), CASES, ids=NAMES)
def test_cut_maps_with_the_gain_folded_in_are_the_best_of_their_rank(kind, setting):
    """Against numpy's SVD of the whole maps, and `FactoredMatrix.truncate`; gains of 0 and 1e-200 among them."""
    model = model_of(kind, setting)
    params = random_params(model)
    heads, maps = reading(model)(params)
    whole = np.asarray(maps.a) @ np.asarray(maps.b)
    np.testing.assert_allclose(np.asarray(heads.norms), np.linalg.norm(whole, axis=(-2, -1)), rtol=1e-12)
    u, s, vt = np.linalg.svd(whole)
    for rank in (1, 2, 7):
        blocks = operate(params, heads, rank=rank)["blocks"]
        own = [blocks[layer]["attention"]["head_output"] for layer in range(2)]
        cut = np.stack([np.asarray(layer["map"]) for layer in own])
        assert np.isfinite(cut).all()
        assert not any(np.any(layer["value_bias"]) for layer in own)
        gains = np.stack([np.asarray(blocks[layer]["attention_norm"]["gain"]) for layer in range(2)])
        folded = gains[:, None, :, None] * cut
        equal(folded, (u[..., :rank] * s[..., None, :rank]) @ vt[..., :rank, :])
        if rank == 2:
            equal(folded, np.asarray(truncated_to_two(maps)))


def test_dropping_comes_before_cutting_and_a_dropped_map_is_zero():
    model = model_of("factorized", {"rank": 5})
    params = random_params(model)
    heads = read(model, params)
    both, cut = operate(params, heads, [(0, 2)], 2), operate(params, heads, rank=2)
    maps, others = (tree["blocks"][0]["attention"]["head_output"]["map"] for tree in (both, cut))
    assert not np.any(maps[2])
    assert jnp.array_equal(maps[jnp.asarray([0, 1, 3])], others[jnp.asarray([0, 1, 3])])
    assert both["embedding"] is params["embedding"]


def test_low_precision_is_read_in_float32():
    model = model_of("standard", {}, param_dtype="bfloat16", dtype="bfloat16")
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), random_params(model))
    heads = read(model, params)
    assert {leaf.dtype for leaf in jax.tree.leaves(heads)} == {jnp.dtype("float32")}
    exact = read(model_of("standard", {}), jax.tree.map(lambda leaf: leaf.astype(np.float64), params))
    np.testing.assert_allclose(np.asarray(heads.norms), np.asarray(exact.norms), rtol=1e-5)


def test_the_weakest_heads_are_those_of_the_least_norms():
    norms = np.asarray([[3.0, 1.0, 2.0], [1.0, 0.5, 9.0]])
    order = [(1, 1), (0, 1), (1, 0), (0, 2), (0, 0), (1, 2)]
    assert [weakest(norms, count) for count in range(7)] == [order[:count] for count in range(7)]
    for count in (-1, 7):
        with pytest.raises(ValueError, match=f"count is {count}, expected 0 to 6, the number of heads"):
            weakest(norms, count)


def test_what_cannot_be_done_is_said():
    model = model_of("factorized", {"rank": 3})
    params = random_params(model)
    heads = read(model, params)
    for rank in (0, 17):
        with pytest.raises(ValueError, match=f"rank is {rank}, expected 1 to 16, the model's width"):
            operate(params, heads, rank=rank)
    for place in ((2, 0), (0, 4), (-1, 0)):
        with pytest.raises(ValueError, match="expected layer 0 to 1 and head 0 to 3"):
            operate(params, heads, [place])

"""Generation with a cache is the model's own next token at every step; the cache is as wide as the heads' rank."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from pydantic import TypeAdapter

from tests.head_output.test_orders import CASES, NAMES, randomized
from wmresearch.config.head_output import HeadOutput
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.orders import ORDERS
from wmresearch.model import Transformer, make_apply
from wmresearch.model.attention import Attention
from wmresearch.model.cost import model_cost
from wmresearch.model.generation import Generator, Sampling, draw, empty_cache, layer_cache

VOCAB, CONTEXT = 11, 12


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def model(kind="standard", setting=None, order="auto", **more):
    config = TypeAdapter(HeadOutput).validate_python({"kind": kind, "order": order, **(setting or {})})
    return ModelConfig(
        d_model=16, n_layers=1, n_heads=4, n_kv_heads=2, context=CONTEXT, param_dtype="float64", dtype="float64",
        head_output=config, **more,
    )  # fmt: skip


def parts(config):
    transformer = Transformer(config, VOCAB)
    params = jax.tree.map(lambda leaf: 0.3 * np.asarray(leaf), randomized(transformer))
    tokens = np.random.default_rng(0).integers(0, VOCAB, (2, CONTEXT))
    return transformer, params, tokens


UNEQUAL = ("dynamic_rank", {"ranks": [[5, 2]], "bucket": 2})
"""A cache of several widths."""


@pytest.mark.parametrize(("kind", "setting"), [*CASES, UNEQUAL], ids=[*NAMES, "unequal ranks"])
def test_a_layer_of_every_kind_goes_on_from_its_cache_as_if_all_were_read_at_once(kind, setting):
    layer = Attention(model(kind, setting))
    graph, _ = nnx.split(layer)
    x = np.random.default_rng(1).standard_normal((2, CONTEXT, 16))

    @jax.jit
    def both(params, x):
        merged = nnx.merge(graph, params)
        cache = layer_cache(layer, 2, CONTEXT, "float64")
        first, cache = merged.continue_with(x[:, :7], cache, 0)
        second, _ = merged.continue_with(x[:, 7:], cache, jnp.int32(7))
        return merged(x), jnp.concatenate([first, second], axis=1)

    whole, pieces = both(randomized(layer), x)
    np.testing.assert_allclose(pieces, whole, rtol=1e-10, atol=1e-10)


STYLES = [
    {},
    {"positions": {"kind": "rope"}, "norm": "rmsnorm", "mlp": "swiglu", "bias": False, "tie_embeddings": False},
]


@pytest.mark.parametrize(
    ("order", "style"),
    [*((order, STYLES[0]) for order in ORDERS), (next(iter(ORDERS)), STYLES[1])],
    ids=[*ORDERS, "Llama"],
)
def test_a_model_of_every_order_and_style_does(order, style):
    config = model("factorized", {"rank": 3}, order, **style)
    transformer, params, tokens = parts(config)
    graph, _ = nnx.split(transformer)

    @jax.jit
    def both(params, tokens):
        cache = empty_cache(transformer, 2, CONTEXT, "float64")
        first, cache = nnx.merge(graph, params).continue_with(tokens[:, :5], cache, 0)
        second, _ = nnx.merge(graph, params).continue_with(tokens[:, 5:], cache, jnp.int32(5))
        return jnp.concatenate([first, second], axis=1), make_apply(transformer, "float64")(params, tokens)

    piecewise, whole = both(params, tokens)
    np.testing.assert_allclose(piecewise, whole, rtol=1e-10, atol=1e-10)


def test_the_likeliest_tokens_are_those_of_the_whole_model_also_when_the_context_is_full():
    config = model("factorized", {"rank": 3})
    transformer, params, tokens = parts(config)
    apply = jax.jit(make_apply(transformer, "float64"))
    pad = lambda text: np.pad(text, ((0, 0), (0, CONTEXT - text.shape[1])))  # one shape, one compilation
    generator = Generator(transformer, "float64", CONTEXT, Sampling(temperature=0), chunk=6)
    made = np.concatenate(list(generator(params, tokens[:, :3], 18, jax.random.key(0))), axis=1)
    text = np.asarray(tokens[:, :3])
    start = 0
    for position in range(18):
        if text.shape[1] - start == CONTEXT:
            start = text.shape[1] - CONTEXT // 2
        logits = np.asarray(apply(params, pad(text[:, start:])))
        expected = logits[:, text.shape[1] - start - 1].argmax(-1)
        np.testing.assert_array_equal(made[:, position], expected)
        text = np.concatenate([text, expected[:, None]], axis=1)


def test_draws_depend_on_the_key_and_the_position_alone():
    transformer, params, tokens = parts(model())
    in_threes, at_once = (Generator(transformer, "float64", CONTEXT, Sampling(), chunk) for chunk in (3, 9))
    runs = [
        np.concatenate(list(generator(params, tokens[:, :2], 9, jax.random.key(seed))), axis=1)
        for generator, seed in ((in_threes, 1), (at_once, 1), (at_once, 2))
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[1] != runs[2]).any()


def test_tokens_are_drawn_with_the_softmax_s_probabilities_and_only_from_the_likeliest():
    logits = jnp.asarray([2.0, 1.0, 0.0, -1.0])
    drawn = draw(jnp.tile(logits, (40_000, 1)), Sampling(temperature=2.0, top=3), jax.random.key(0))
    shares = np.bincount(np.asarray(drawn), minlength=4) / 40_000
    expected = np.exp([1.0, 0.5, 0.0])
    np.testing.assert_allclose(shares, [*(expected / expected.sum()), 0], atol=0.01)


@pytest.mark.parametrize(("kind", "setting"), [("standard", {}), ("factorized", {"rank": 3}), ("dense", {})])
def test_the_cache_holds_as_many_numbers_as_the_cost_says(kind, setting):
    config = model(kind, setting)
    cache = empty_cache(Transformer(config, VOCAB), 1, CONTEXT, "float64")
    numbers = sum(leaf.size for leaf in jax.tree.leaves(cache))
    assert numbers == CONTEXT * sum(part.cache_numbers_per_token for part in model_cost(config, VOCAB).parts)

"""The laws that the transformer and its head outputs obey, in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from wmresearch.config.head_output import FactorizedConfig, StandardConfig
from wmresearch.config.model import LearnedPositions, ModelConfig, RotaryPositions
from wmresearch.head_output.orders import QUERY_BLOCK
from wmresearch.head_output.weights import abstract_params
from wmresearch.model import Transformer, make_apply
from wmresearch.model.attention import Attention
from wmresearch.model.layers import rotate
from wmresearch.model.mixing import attention

VOCAB = 17
GPT2 = {"norm": "layernorm", "mlp": "gelu_tanh", "bias": True, "positions": LearnedPositions()}
LLAMA = {
    "norm": "rmsnorm", "mlp": "swiglu", "bias": False, "positions": RotaryPositions(), "tie_embeddings": False,
    "n_kv_heads": 2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def model_config(**changes):
    base = {"d_model": 16, "n_layers": 2, "n_heads": 4, "context": 12, "dtype": "float64", "param_dtype": "float64"}
    return ModelConfig(**(base | changes))


def randomized(module, seed=0):
    """Parameters that are all random, biases and gains too, so that no term can hide behind a zero."""
    abstract = abstract_params(module)
    draw = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: 0.3 * draw.standard_normal(leaf.shape) + 0.1, abstract)


def drawn(*shape, seed=2):
    return np.random.default_rng(seed).standard_normal(shape)


TOKENS = np.random.default_rng(5).integers(0, VOCAB, (2, 12))


def close(actual, expected, tolerance=1e-10):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=tolerance, atol=tolerance)


def relative_error(actual, expected):
    return np.linalg.norm(np.asarray(actual) - expected) / np.linalg.norm(expected)


def softmax(score):
    """Over the positions that each may see."""
    seen = np.where(np.tril(np.ones(score.shape[-2:], bool)), score, -np.inf)
    p = np.exp(seen - seen.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def test_concatenated_heads_times_the_output_projection_is_the_sum_over_heads():
    """concat(heads) @ W_O == Σ head_i W_O_i == Σ P_i X M_i with M_i = W_V_i W_O_i."""
    config = model_config(bias=False)
    layer = Attention(config)
    params = randomized(layer)
    x = drawn(3, 12, 16)
    graph, _ = nnx.split(layer)

    @jax.jit
    def both(params, x):
        module = nnx.merge(graph, params)
        return module(x), module.head_output.factors().dense()

    y, maps = map(np.asarray, both(params, x))
    query = np.einsum("btd,dhe->bthe", x, params["query"])
    key = np.einsum("btd,dhe->bthe", x, params["key"])
    p = softmax(np.einsum("bthe,bshe->bhts", query, key) / 2)
    w_v, w_o = params["head_output"]["value"], params["head_output"]["output"]
    heads = [p[:, i] @ (x @ w_v[:, i]) for i in range(4)]
    concatenated = np.concatenate(heads, -1) @ w_o
    summed = sum(heads[i] @ w_o[4 * i : 4 * i + 4] for i in range(4))
    through_maps = sum(p[:, i] @ x @ maps[i] for i in range(4))
    close(concatenated, summed, 1e-12)
    close(concatenated, through_maps, 1e-12)
    close(y, concatenated, 1e-12)


@pytest.mark.parametrize(("style", "bias"), [(GPT2, True), (LLAMA, False)], ids=["gpt2", "llama"])
def test_factorized_at_the_standard_rank_is_the_standard_layer(style, bias):
    """With copied weights: equal output and equal gradients, to 1e-10."""
    shape = style | {"n_layers": 1}
    standard = Transformer(model_config(**shape, head_output=StandardConfig(bias=bias)), VOCAB)
    factorized = Transformer(model_config(**shape, head_output=FactorizedConfig(rank=4, bias=bias)), VOCAB)
    params = randomized(standard)

    def to_factorized(params):
        blocks = {}
        for index, block in params["blocks"].items():
            own = dict(block["attention"]["head_output"])
            own = {"factor_a": own.pop("value"), "factor_b": own.pop("output").reshape(4, 4, 16), **own}
            blocks[index] = block | {"attention": block["attention"] | {"head_output": own}}
        return params | {"blocks": blocks}

    def loss(transformer, params):
        logits = make_apply(transformer, "float64")(params, TOKENS)
        return jnp.sum(jnp.sin(logits)), logits

    (_, expected), gradient = jax.jit(jax.value_and_grad(partial(loss, standard), has_aux=True))(params)
    copied = to_factorized(params)
    (_, actual), own_gradient = jax.jit(jax.value_and_grad(partial(loss, factorized), has_aux=True))(copied)
    assert relative_error(actual, expected) < 1e-10
    flat, own_flat = jax.tree.leaves_with_path(to_factorized(gradient)), jax.tree.leaves_with_path(own_gradient)
    assert [path for path, _ in flat] == [path for path, _ in own_flat]
    for (path, want), (_, got) in zip(flat, own_flat, strict=True):
        assert np.linalg.norm(want) > 1e-6 or "key_bias" in str(path), path
        close(got, want)


@pytest.mark.parametrize("style", [GPT2, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize("head_output", [StandardConfig(), FactorizedConfig(rank=7)], ids=["standard", "factorized"])
def test_no_position_sees_the_future(style, head_output):
    """The gradient of the logits at t with respect to what enters at s > t is exactly zero, and is not at s ≤ t."""
    t = QUERY_BLOCK + 9  # more than one block of queries
    untied = style | {"tie_embeddings": False, "context": t, "head_output": head_output}
    transformer = Transformer(model_config(**untied), VOCAB)
    params = randomized(transformer)
    apply = make_apply(transformer, "float64")
    ids, places = np.arange(t) % VOCAB, np.arange(t)[None]

    def logits(shift):  # a one-hot route into the embedding, so that there is something to differentiate
        wide = params | {"embedding": params["embedding"][ids] + shift}
        return apply(wide, places)[0]

    gradient_at = jax.jit(jax.grad(lambda shift, position: jnp.sum(jnp.sin(logits(shift)[position]))))
    for position in (0, 5, QUERY_BLOCK - 1, QUERY_BLOCK, t - 1):
        reached = np.abs(np.asarray(gradient_at(np.zeros((t, 16)), position))).max(axis=1) > 0
        assert reached[: position + 1].all() and not reached[position + 1 :].any()


@pytest.mark.parametrize(
    ("t", "value_heads"), [(1, 4), (5, 2), (QUERY_BLOCK, 1), (QUERY_BLOCK + 1, 2), (2 * QUERY_BLOCK + 3, 4)]
)
def test_attention_in_query_blocks_is_plain_attention(t, value_heads):
    """Any number of value heads that divides the query heads; keys in two groups."""
    query, key, value = drawn(2, t, 4, 6), drawn(2, t, 2, 6, seed=3), drawn(2, t, value_heads, 3, seed=4)
    weighting = drawn(2, t, 4, 3, seed=5)

    def plain(query, key, value):
        score = jnp.einsum("bthe,bshe->bhts", query, jnp.repeat(key, 2, axis=2)) / np.sqrt(6.0)
        p = jax.nn.softmax(jnp.where(np.tril(np.ones((t, t), bool))[None, None], score, -jnp.inf), -1)
        return jnp.einsum("bhts,bshr->bthr", p, jnp.repeat(value, 4 // value_heads, axis=2))

    @jax.jit
    def both(*inputs):
        results = [jax.vjp(f, *inputs) for f in (lambda query, key, value: attention(query, key)(value), plain)]
        return [(mixed, pullback(weighting)) for mixed, pullback in results]

    (mixed, gradients), (expected, of_plain) = both(query, key, value)
    close(mixed, expected, 1e-12)
    for got, want in zip(gradients, of_plain, strict=True):
        close(got, want, 1e-11)


def test_rotary_scores_depend_on_the_distance_only():
    q, k = drawn(2, 1, 1, 1, 8)
    rotated = jax.jit(lambda x: rotate(x, 100.0)[0, :, 0])
    many_q, many_k = (np.asarray(rotated(np.tile(x, (1, 20, 1, 1)))) for x in (q, k))
    score = many_q @ many_k.T
    for distance in (0, 3, 11):
        diagonal = np.diagonal(score, -distance)
        close(diagonal, np.full_like(diagonal, diagonal[0]), 1e-12)
    close(score[0, 0], np.sum(q * k), 1e-12)


def test_the_query_heads_of_a_group_share_a():
    layer = Attention(model_config(n_kv_heads=2, bias=False, head_output=FactorizedConfig(rank=3)))
    graph, _ = nnx.split(layer)
    factors = jax.jit(lambda params: nnx.merge(graph, params).head_output.factors())(randomized(layer))
    a, b = np.asarray(factors.a), np.asarray(factors.b)
    assert a.shape == (4, 16, 3) and b.shape == (4, 3, 16)
    assert (a[0] == a[1]).all() and (a[2] == a[3]).all() and (a[1] != a[2]).any()


@pytest.mark.parametrize("style", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_dropout_acts_only_with_a_key_and_keeps_the_mean(style):
    transformer = Transformer(model_config(**style, dropout=0.2), VOCAB)
    params, apply = randomized(transformer), jax.jit(make_apply(transformer, "float64"))
    plain = np.asarray(apply(params, TOKENS))
    same = jax.jit(make_apply(Transformer(model_config(**style), VOCAB), "float64"))(params, TOKENS)
    close(plain, same, 1e-12)
    a, b, again = (np.asarray(apply(params, TOKENS, jax.random.key(seed))) for seed in (0, 1, 0))
    assert not np.allclose(a, plain) and not np.allclose(a, b)
    assert (a == again).all()

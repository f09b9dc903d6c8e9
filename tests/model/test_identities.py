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
from wmresearch.head_output.weights import initialize
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
    abstract = jax.eval_shape(lambda: initialize(module, jax.random.key(seed)))
    draw = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(0.3 * draw.standard_normal(leaf.shape) + 0.1), abstract)


def tokens(batch=2, t=12, seed=5):
    return jax.random.randint(jax.random.key(seed), (batch, t), 0, VOCAB)


def close(actual, expected, tolerance=1e-10):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=tolerance, atol=tolerance)


def relative_error(actual, expected):
    return float(jnp.linalg.norm((actual - expected).ravel()) / jnp.linalg.norm(expected.ravel()))


def test_concatenated_heads_times_the_output_projection_is_the_sum_over_heads():
    """concat(heads) @ W_O == Σ head_i W_O_i == Σ P_i X M_i with M_i = W_V_i W_O_i."""
    config = model_config(bias=False)
    layer = Attention(config)
    params = randomized(layer)
    x = jax.random.normal(jax.random.key(2), (3, 12, 16))
    module = nnx.merge(nnx.split(layer)[0], params)
    query = jnp.einsum("btd,dhe->bthe", x, params["query"])
    key = jnp.einsum("btd,dhe->bthe", x, params["key"])
    score = jnp.einsum("bthe,bshe->bhts", query, key) / jnp.sqrt(4.0)
    causal = jnp.tril(jnp.ones((12, 12), bool))[None, None]
    p = jax.nn.softmax(jnp.where(causal, score, -jnp.inf), -1)
    w_v, w_o = params["head_output"]["value"], params["head_output"]["output"]
    heads = [p[:, i] @ (x @ w_v[:, i]) for i in range(4)]
    concatenated = jnp.concatenate(heads, -1) @ w_o
    summed = sum(heads[i] @ w_o[4 * i : 4 * i + 4] for i in range(4))
    maps = module.head_output.factors().dense()
    through_maps = sum(p[:, i] @ x @ maps[i] for i in range(4))
    close(concatenated, summed, 1e-12)
    close(concatenated, through_maps, 1e-12)
    close(module(x), concatenated, 1e-12)


@pytest.mark.parametrize("style", [GPT2, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize("bias", [True, False])
def test_factorized_at_the_standard_rank_is_the_standard_layer(style, bias):
    """With copied weights: equal output and equal gradients, to 1e-10."""
    standard = Transformer(model_config(**style, head_output=StandardConfig(bias=bias)), VOCAB)
    factorized = Transformer(model_config(**style, head_output=FactorizedConfig(rank=4, bias=bias)), VOCAB)
    params = randomized(standard)

    def to_factorized(params):
        blocks = {}
        for index, block in params["blocks"].items():
            own = dict(block["attention"]["head_output"])
            own = {"factor_a": own.pop("value"), "factor_b": own.pop("output").reshape(4, 4, 16), **own}
            blocks[index] = block | {"attention": block["attention"] | {"head_output": own}}
        return params | {"blocks": blocks}

    def loss(transformer, params):
        logits = make_apply(transformer, "float64")(params, tokens())
        return jnp.sum(jnp.sin(logits)), logits

    (_, expected), gradient = jax.jit(jax.value_and_grad(partial(loss, standard), has_aux=True))(params)
    copied = to_factorized(params)
    (_, actual), own_gradient = jax.jit(jax.value_and_grad(partial(loss, factorized), has_aux=True))(copied)
    assert relative_error(actual, expected) < 1e-10
    flat, own_flat = jax.tree.leaves_with_path(to_factorized(gradient)), jax.tree.leaves_with_path(own_gradient)
    assert [path for path, _ in flat] == [path for path, _ in own_flat]
    for (path, want), (_, got) in zip(flat, own_flat, strict=True):
        assert float(jnp.linalg.norm(want)) > 1e-6 or "key_bias" in str(path), path
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
    ids = jnp.arange(t) % VOCAB

    def logits(shift):  # a one-hot route into the embedding, so that there is something to differentiate
        wide = params | {"embedding": params["embedding"][ids] + shift}
        return apply(wide, jnp.arange(t)[None])[0]

    gradient_at = jax.jit(jax.grad(lambda shift, position: jnp.sum(jnp.sin(logits(shift)[position]))))
    for position in (0, 5, QUERY_BLOCK - 1, QUERY_BLOCK, t - 1):
        reached = np.abs(np.asarray(gradient_at(jnp.zeros((t, 16)), position))).max(axis=1) > 0
        assert reached[: position + 1].all() and not reached[position + 1 :].any()


@pytest.mark.parametrize(
    ("t", "value_heads"), [(1, 4), (5, 2), (QUERY_BLOCK, 1), (QUERY_BLOCK + 1, 2), (2 * QUERY_BLOCK + 3, 4)]
)
def test_attention_in_query_blocks_is_plain_attention(t, value_heads):
    """Any number of value heads that divides the query heads; keys in two groups."""
    keys = jax.random.split(jax.random.key(0), 3)
    query, key = jax.random.normal(keys[0], (2, t, 4, 6)), jax.random.normal(keys[1], (2, t, 2, 6))
    value = jax.random.normal(keys[2], (2, t, value_heads, 3))

    def blocked(query, key, value):
        return attention(query, key)(value)

    def plain(query, key, value):
        score = jnp.einsum("bthe,bshe->bhts", query, jnp.repeat(key, 2, axis=2)) / jnp.sqrt(6.0)
        p = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((t, t), bool))[None, None], score, -jnp.inf), -1)
        return jnp.einsum("bhts,bshr->bthr", p, jnp.repeat(value, 4 // value_heads, axis=2))

    results = [jax.jit(lambda *a, f=f: jax.vjp(f, *a))(query, key, value) for f in (blocked, plain)]
    close(results[0][0], results[1][0], 1e-12)
    weighting = jax.random.normal(jax.random.key(9), (2, t, 4, 3))
    for got, want in zip(*(jax.jit(pullback)(weighting) for _, pullback in results), strict=True):
        close(got, want, 1e-11)


def test_rotary_scores_depend_on_the_distance_only():
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))
    many = lambda x: rotate(jnp.tile(x, (1, 20, 1, 1)), 100.0)[0, :, 0]
    score = many(q) @ many(k).T
    for distance in (0, 3, 11):
        diagonal = jnp.diagonal(score, -distance)
        close(diagonal, jnp.full_like(diagonal, diagonal[0]), 1e-12)
    close(score[0, 0], jnp.sum(q * k), 1e-12)


def test_the_query_heads_of_a_group_share_a():
    layer = Attention(model_config(n_kv_heads=2, bias=False, head_output=FactorizedConfig(rank=3)))
    module = nnx.merge(nnx.split(layer)[0], randomized(layer))
    factors = module.head_output.factors()
    assert factors.a.shape == (4, 16, 3) and factors.b.shape == (4, 3, 16)
    assert jnp.array_equal(factors.a[0], factors.a[1]) and jnp.array_equal(factors.a[2], factors.a[3])
    assert not jnp.array_equal(factors.a[1], factors.a[2])


@pytest.mark.parametrize("style", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_dropout_acts_only_with_a_key_and_keeps_the_mean(style):
    transformer = Transformer(model_config(**style, dropout=0.2), VOCAB)
    params, apply = randomized(transformer), jax.jit(make_apply(transformer, "float64"))
    plain = apply(params, tokens())
    same = jax.jit(make_apply(Transformer(model_config(**style), VOCAB), "float64"))(params, tokens())
    close(plain, same, 1e-12)
    a, b = apply(params, tokens(), jax.random.key(0)), apply(params, tokens(), jax.random.key(1))
    assert not jnp.allclose(a, plain) and not jnp.allclose(a, b)
    assert jnp.array_equal(a, apply(params, tokens(), jax.random.key(0)))

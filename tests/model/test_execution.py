"""Ways of carrying out a step that compute the same, in float64: of layers, of attention, of norms, of the loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wmresearch.config.model import ModelConfig
from wmresearch.config.training import ExecutionConfig
from wmresearch.head_output.weights import abstract_params
from wmresearch.model import Transformer, make_nats
from wmresearch.model.layers import normalize
from wmresearch.model.mixing import attention, of_equal_widths

VOCAB = 13
UNEVEN = {"kind": "factorized", "ranks": ((2, 1), (3, 3), (3, 3))}
SHARED = {"kind": "shared_basis", "rank": 3, "share": "model"}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def close(got, want, tolerance=1e-10):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def loss_and_gradient(head_output, mlp="gelu", **execution):
    """Weighted loss, loss of each token and gradient as a function of the parameters, which are random."""
    model = ModelConfig(
        d_model=8, n_layers=3, n_heads=2, context=6, dtype="float64", param_dtype="float64", dropout=0.2,
        head_output=head_output, mlp=mlp,
    )  # fmt: skip
    transformer = Transformer(model, VOCAB, ExecutionConfig(**execution))
    draw = np.random.default_rng(0)
    abstract = abstract_params(transformer)
    params = jax.tree.map(lambda leaf: jnp.asarray(draw.normal(0.1, 0.3, leaf.shape)), abstract)
    tokens = jnp.asarray(draw.integers(0, VOCAB, (3, 7)))
    nats = make_nats(transformer, "float64")

    def weighted(params):
        found = nats(params, tokens[:, :-1], tokens[:, 1:], jax.random.key(3))
        return jnp.sum(found * jnp.cos(jnp.arange(18.0).reshape(3, 6))), found

    return jax.jit(jax.value_and_grad(weighted, has_aux=True)), params


ALL = {"scan_layers": True, "remat": "layers", "logits_block": 4}


@pytest.mark.parametrize(
    ("head_output", "executions"),
    [
        ({"kind": "standard"}, [{"remat": "products"}, {"remat": "layers"}, {"scan_layers": True}, ALL]),
        (UNEVEN, [ALL | {"logits_block": 6}]),
        (SHARED, [ALL | {"logits_block": 1}]),
    ],
    ids=["standard", "uneven", "shared"],
)
def test_every_way_of_execution_has_the_same_loss_and_gradient(head_output, executions):
    program, params = loss_and_gradient(head_output)
    expected = program(params)
    for execution in executions:
        close(loss_and_gradient(head_output, **execution)[0](params), expected)


def test_layers_are_really_scanned_and_computed_again_and_logits_held_in_part():
    def traced(head_output, **execution):
        program, params = loss_and_gradient(head_output, "relu", **execution)  # the others are computed again anyway
        return str(program.trace(params).jaxpr)

    standard = {"kind": "standard"}
    plain = traced(standard)
    assert "scan[" not in plain and "remat" not in plain and f"f64[3,6,{VOCAB}]" in plain
    assert "length=3" in traced(standard, scan_layers=True)
    assert "length=2" in traced(UNEVEN, scan_layers=True), "the two layers of rank 3"
    assert "remat" in traced(standard, remat="layers")
    in_blocks = traced(standard, logits_block=4)
    assert f"f64[1,4,{VOCAB}]" in in_blocks and f"f64[3,6,{VOCAB}]" not in in_blocks


@pytest.mark.parametrize("centre", [True, False])
def test_a_norm_and_its_gradient_are_those_of_the_formula(centre):
    x = jnp.asarray(np.random.default_rng(0).normal(0.4, 2.0, (3, 2, 5)))

    def plain(x):
        centred = x - x.mean(-1, keepdims=True) if centre else x
        return centred / jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)

    of = lambda f: jax.jit(lambda x: (f(x), jax.vjp(f, x)[1](jnp.sin(x))[0]))(x)
    close(of(lambda x: normalize(x, centre)), of(plain), 1e-12)


@pytest.mark.parametrize(("width", "rank"), [(8, 8), (6, 11), (12, 3)])
def test_attention_with_widths_made_equal_is_the_same(width, rank):
    """The form in which cuDNN takes it, by the implementation in XLA."""
    draw = np.random.default_rng(0)
    query, key, value = (jnp.asarray(draw.normal(size=(2, 7, *shape))) for shape in ((4, width), (2, width), (2, rank)))
    forms = (
        lambda q, k, v: attention(q, k)(v),
        lambda q, k, v: of_equal_widths(q * width**-0.5, k, v, "xla"),
    )
    ours, equal = (
        jax.jit(lambda *a, f=f: (f(*a), jax.vjp(f, *a)[1](jnp.cos(f(*a)))))(query, key, value) for f in forms
    )
    close(ours, equal, 1e-6)  # that implementation has its softmax in float32

"""The three orders of evaluation are one function, for every kind of head output."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tests.model.counting import product_flops
from wmresearch.config.head_output import HeadOutput
from wmresearch.config.model import ModelConfig
from wmresearch.head_output import KINDS, make_head_output
from wmresearch.head_output.orders import ORDERS, attended_keys, fastest
from wmresearch.head_output.weights import about, abstract_params, initialize, join, split
from wmresearch.model.attention import Attention

SETTINGS: dict[str, list[dict]] = {
    "standard": [{}],
    "factorized": [{"rank": 3}, {"rank": 16}],
    "dense": [{}],
    "shared_basis": [{"rank": 5}, {"rank": 3, "share": "model"}],
    "low_rank_diagonal": [{"rank": 3}],
    "block_diagonal": [{"blocks": 4}],
    "kronecker": [{"outer": 2}, {"outer": 4, "terms": 3}],
    "monarch": [{"blocks": 4}, {"blocks": 2}],
    "sparse": [
        {"density": 0.3},
        {"density": 0.3, "of": "factors", "rank": 3},
        {"density": 0.25, "pattern": {"kind": "block", "size": 4}},
        {"density": 0.25, "pattern": {"kind": "block", "size": 4}, "method": "rigl"},
        {"pattern": {"kind": "n:m", "n": 2, "m": 4}},
    ],
    "dynamic_rank": [{"rank": 3, "bucket": 2}],
    "none": [{}],
    "fixed_orthogonal": [{}],
    "identity_value": [{}],
}
"""For every kind, at least one setting that the laws are tried at."""
CASES = [(kind, setting) for kind, settings in SETTINGS.items() for setting in settings]
NAMES = [f"{kind} {setting}" for kind, setting in CASES]
ORDERED = [(kind, setting) for kind, setting in CASES if kind != "dynamic_rank"]
"""Those that have more than one order."""
NAMES_OF_ORDERED = [f"{kind} {setting}" for kind, setting in ORDERED]


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def layer(kind, setting, order="auto", **model):
    config = TypeAdapter(HeadOutput).validate_python({"kind": kind, "order": order, **setting})
    shape = {"d_model": 16, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2, "context": 12, "bias": True}
    dtypes = {"param_dtype": "float64", "dtype": "float64"}
    return Attention(ModelConfig(**(shape | dtypes | model), head_output=config))


def chosen(kind, setting, **model):
    return layer(kind, setting, **({"n_kv_heads": None, "bias": False} | model)).head_output.order


def randomized(module):
    draw = np.random.default_rng(0)
    parameter = about(module, lambda _, param: param.trainable)
    make = lambda: initialize(module, jax.random.key(0))
    made = jax.eval_shape(make) if all(jax.tree.leaves(parameter)) else make()  # masks and places as they are made
    return jax.tree.map(
        lambda leaf, own: jnp.asarray(draw.standard_normal(leaf.shape)) if own else leaf, made, parameter
    )


def test_every_kind_has_a_setting():
    assert SETTINGS.keys() == KINDS.keys()


def drawn(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape)


def mixing(p_bhts):
    """Any attention, given as the matrices P_i."""

    def mix(value_bskr, heads=slice(None)):
        p = p_bhts[:, heads]
        return jnp.einsum("bhts,bshr->bthr", p, jnp.repeat(value_bskr, p.shape[1] // value_bskr.shape[2], axis=2))

    return mix


def agree(modules, *inputs):
    """Modules of equal parameters have equal values at these inputs, and equal gradients by parameters and inputs."""
    parameter = about(modules[0], lambda _, param: param.trainable)
    own, fixed = split(randomized(modules[0]), parameter)
    graphs = [nnx.split(module)[0] for module in modules]

    def loss(own, inputs, graph):
        y = nnx.merge(graph, join(own, fixed))(*inputs)
        return jnp.sum(jnp.sin(y)), y

    found = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    first, *others = jax.jit(lambda own, inputs: [found(own, inputs, graph) for graph in graphs])(own, inputs)
    for other in others:
        for want, got in zip(jax.tree.leaves(first), jax.tree.leaves(other), strict=True):
            scale = np.abs(want).max()
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10 * max(scale, 1))


class Mixed(nnx.Module):
    """A head output with the scores of the attention as an input."""

    def __init__(self, head_output):
        self.head_output = head_output

    def __call__(self, x, scores):
        return self.head_output(x, mixing(jax.nn.softmax(scores, axis=-1)))


@pytest.mark.parametrize(("kind", "setting"), ORDERED, ids=NAMES_OF_ORDERED)
def test_orders_agree_in_value_and_gradient(kind, setting):
    """Of the head's parameters, of x where it is read, and of the attention; `test_identities` has the attention's."""
    outputs = [layer(kind, setting, order).head_output for order in ORDERS]
    assert tuple(output.order for output in outputs) == tuple(ORDERS)
    agree([Mixed(output) for output in outputs], drawn(2, 5, 16), drawn(2, 4, 5, 5, seed=2))


def test_orders_agree_in_a_whole_layer():
    agree([layer("factorized", {"rank": 3}, order) for order in ORDERS], drawn(2, 12, 16))


@pytest.mark.parametrize(("kind", "setting"), CASES, ids=NAMES)
def test_the_layer_is_the_sum_of_attention_times_maps(kind, setting):
    """y = Σ_i P_i X M_i (+ biases), M_i from `factors()`."""
    module = layer(kind, setting, bias=False).head_output
    graph, _ = nnx.split(module)
    x = drawn(1, 12, 16)
    p = np.exp(drawn(1, 4, 12, 12, seed=2))
    p /= p.sum(axis=-1, keepdims=True)

    @jax.jit
    def found(params):
        merged = nnx.merge(graph, params)
        return merged(x, mixing(p)), merged.factors().dense()

    y, maps = map(np.asarray, found(randomized(module)))
    assert maps.shape == (4, 16, 16)
    expected = sum(p[0, i] @ x[0] @ maps[i] for i in range(4))
    np.testing.assert_allclose(y[0], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("kind", "setting", "order"),
    [(*case, order) for case in CASES for order in ORDERS if case in ORDERED or order == "attend_then_write"],
)
def test_operations_are_those_of_the_program(kind, setting, order):
    module = layer(kind, setting, order)
    graph, _ = nnx.split(module)
    params = abstract_params(module)
    x = jax.ShapeDtypeStruct((2, 12, 16), jnp.float64)
    program = jax.make_jaxpr(lambda params, x: nnx.merge(graph, params)(x))(params, x)
    assert 2 * 12 * module.flops_per_token(attended_keys(12)) == pytest.approx(product_flops(program.jaxpr), rel=1e-12)


@pytest.mark.parametrize("kind", ["standard", "dense", "shared_basis", "block_diagonal", "none", "fixed_orthogonal"])
def test_maps_start_as_large_as_the_standard_ones(kind):
    """‖M_i‖_F, averaged over heads."""
    with jax.enable_x64(False):
        setting = {"rank": 24} if kind == "shared_basis" else {"blocks": 4} if kind == "block_diagonal" else {}
        config = TypeAdapter(HeadOutput).validate_python({"kind": kind, **setting})
        model = ModelConfig(d_model=64, n_layers=1, n_heads=4, context=8, bias=False, head_output=config)
        module = make_head_output(model)
        made = nnx.merge(nnx.split(module)[0], initialize(module, jax.random.key(0)))
        factors = made.factors()
        norm = np.linalg.norm(np.asarray(factors.a) @ np.asarray(factors.b)) / 2
        assert norm == pytest.approx(64 * model.product_std, rel=0.15)


@pytest.mark.parametrize("context", [12, 64, 300])
@pytest.mark.parametrize(("kind", "setting"), ORDERED, ids=NAMES_OF_ORDERED)
def test_auto_is_the_order_with_the_least_predicted_time(kind, setting, context):
    module = layer(kind, setting, context=context).head_output
    cost = module.path_cost()
    assert module.order == fastest(cost, context)
    assert cost.time_per_token(module.order, context) == min(cost.time_per_token(order, context) for order in ORDERS)


@pytest.mark.parametrize(("kind", "setting"), ORDERED, ids=NAMES_OF_ORDERED)
def test_orders_that_are_one_program_are_predicted_to_take_equal_time(kind, setting):
    """Attend-then-write and mix-first, where heads read x itself."""
    x = jax.ShapeDtypeStruct((2, 12, 16), jnp.float64)
    programs = {}
    for order in ("attend_then_write", "mix_first"):
        module = layer(kind, setting, order, bias=False)
        graph, _ = nnx.split(module)
        params = abstract_params(module)
        call = lambda params, x, graph=graph: nnx.merge(graph, params)(x)
        programs[order] = str(jax.make_jaxpr(call)(params, x))
    cost = module.head_output.path_cost()
    times = {cost.time_per_token(order, 12) for order in programs}
    assert (len(times) == 1) == (len(set(programs.values())) == 1)


@given(
    heads=st.integers(2, 64), width=st.integers(1, 32).map(lambda n: 8 * n), grouped=st.booleans(),
    context=st.integers(1, 100_000),
)  # fmt: skip
def test_a_standard_layer_attends_and_then_writes(heads, width, grouped, context):
    shape = {"d_model": heads * width, "n_heads": heads, "n_kv_heads": 1 if grouped else None, "context": context}
    assert chosen("standard", {}, **shape) == "attend_then_write"


@given(heads=st.integers(2, 16), width=st.integers(1, 16), data=st.data())
def test_a_low_rank_attends_and_then_writes(heads, width, data):
    """Up to a quarter of the width and a context of 1024: near half, many heads would rather read one x than values."""
    d = 8 * heads * width
    rank, context = data.draw(st.integers(1, d // 4)), data.draw(st.integers(1, 1024))
    shape = {"d_model": d, "n_heads": heads, "context": context}
    assert chosen("factorized", {"rank": rank}, **shape) == "attend_then_write"


def test_maps_of_full_rank_take_another_order():
    long, short = ({"d_model": 256, "n_heads": 4, "context": context} for context in (512, 64))
    assert chosen("factorized", {"rank": 240}, **long) == "mix_first"
    assert chosen("low_rank_diagonal", {"rank": 16}, **long) == "mix_first"
    assert chosen("kronecker", {"outer": 16}, **short) == "modify_then_attend"
    assert chosen("monarch", {"blocks": 16}, **short) == "modify_then_attend"
    # which is mix-first too (`test_orders_that_are_one_program…`), and keeps x itself, one for all heads
    assert chosen("dense", {}, **long) == "attend_then_write"
    assert layer("dense", {}).head_output.cache_per_token() == 16


def test_auto_does_not_lose_a_value_bias_to_dropout():
    """Mix-first adds it after mixing, which asks for rows that sum to one."""
    shape = {"d_model": 256, "n_heads": 4, "context": 512}
    for dropout, bias, order in [(0.0, True, "mix_first"), (0.1, False, "mix_first"), (0.1, True, "attend_then_write")]:
        assert chosen("factorized", {"rank": 240}, bias=bias, dropout=dropout, **shape) == order

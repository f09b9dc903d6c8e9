"""Costs are counted from shapes; here they are compared with the parameters and with the program itself."""

import jax
import jax.numpy as jnp
import pytest

from tests.model.counting import compiled_product_flops, product_flops
from wmresearch.config import load_run
from wmresearch.config.head_output import DenseConfig, FactorizedConfig, KroneckerConfig, StandardConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.weights import abstract_params, count, initialize
from wmresearch.model import Transformer, make_apply, make_nats
from wmresearch.model.cost import head_output_weights, model_cost
from wmresearch.training.step import make_loss

SHAPES = [
    {"context": 64},
    {"context": 150, "bias": False, "norm": "rmsnorm", "mlp": "swiglu", "positions": "rope", "tie_embeddings": False},
    {"context": 64, "n_kv_heads": 1, "d_head": 24},
    {"context": 70, "n_kv_heads": 2, "head_output": FactorizedConfig(rank=5)},
    {"context": 64, "head_output": FactorizedConfig(rank=32, bias=False)},
]
COMPILED = [StandardConfig(), FactorizedConfig(rank=5), DenseConfig(), KroneckerConfig(outer=4)]


def config(**changes):
    return ModelConfig.model_validate({"d_model": 32, "n_layers": 3, "n_heads": 4} | changes)


@pytest.mark.parametrize("changes", SHAPES)
def test_parameters_are_those_of_the_model(changes):
    model = config(**changes)
    transformer = Transformer(model, 50)
    params = initialize(transformer, jax.random.key(0))
    cost = model_cost(model, 50)
    assert cost.parameters == sum(leaf.size for leaf in jax.tree.leaves(params)) == count(transformer)
    own = sum(leaf.size for leaf in jax.tree.leaves(params["blocks"][0]["attention"]["head_output"]))
    assert cost.head_output_parameters == 3 * own == sum(weight.all_layers for weight in head_output_weights(model))


RANKS = {"context": 64, "n_kv_heads": 2, "head_output": FactorizedConfig(ranks=((5, 2), (1, 1), (0, 32)))}
"""Another rank in each layer: attend-then-write in one, mix-first in another."""


@pytest.mark.parametrize("changes", [*SHAPES, RANKS])
def test_flops_are_those_of_the_matrix_products_in_a_training_step(changes):
    model = config(**changes)
    transformer = Transformer(model, 50)
    apply = make_apply(transformer, "float32")
    params = abstract_params(transformer)
    tokens = jax.ShapeDtypeStruct((2, model.context), jnp.int32)
    loss = lambda params, tokens: jnp.sum(apply(params, tokens))
    program = jax.make_jaxpr(jax.grad(loss))(params, tokens)
    counted = model_cost(model, 50).training_flops_per_token * 2 * model.context
    assert counted == pytest.approx(product_flops(program.jaxpr), rel=1e-12)


@pytest.mark.parametrize("head_output", COMPILED, ids=lambda config: config.kind)
def test_flops_are_those_of_the_compiled_training_step(head_output):
    """The compiler leaves no product out: even the first layer's input has a gradient, which the embeddings need.

    On the version this was written with the two are equal; another may turn a thin product into a sum.
    """
    model = config(context=128, head_output=head_output)
    transformer = Transformer(model, 50)
    loss = make_loss(make_nats(transformer, "float32"))
    params = abstract_params(transformer)
    tokens = jax.ShapeDtypeStruct((2, model.context + 1), jnp.int32)
    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    users = {"xla_cpu_use_fusion_emitters": True}
    made = compiled_product_flops(step.lower(params, tokens, None).compile(compiler_options=users).as_text())
    assert made == pytest.approx(model_cost(model, 50).training_flops_per_token * 2 * model.context, rel=0.02)


def test_products_of_a_compiled_program_are_found_wherever_they_stand():
    """In fusions, twice where called twice, and as a library's own: 2·2·3·5 + 2·(2·2·5·7)."""
    text = """HloModule it

%inner (param_0: f32[2,5], param_1: f32[5,7]) -> f32[2,7] {
  %param_0 = f32[2,5]{1,0} parameter(0)
  %param_1 = f32[5,7]{1,0} parameter(1)
  ROOT %dot.1 = f32[2,7]{1,0} dot(%param_0, %param_1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (x: f32[2,3], w: f32[3,5], v: f32[5,7]) -> f32[2,7] {
  %x = f32[2,3]{1,0} parameter(0)
  %w = f32[3,5]{1,0} parameter(1)
  %v = f32[5,7]{1,0} parameter(2)
  %hidden = f32[2,5]{1,0} custom-call(%x, %w), custom_call_target="__onednn$matmul"
  %one = f32[2,7]{1,0} fusion(%hidden, %v), kind=kCustom, calls=%inner
  %two = f32[2,7]{1,0} fusion(%hidden, %v), kind=kCustom, calls=%inner
  ROOT %sum = f32[2,7]{1,0} add(%one, %two)
}
"""
    assert compiled_product_flops(text) == 60 + 280


def test_llama3_8b_counts_without_making_it():
    loaded = load_run("llama3-8b")
    cost = model_cost(loaded.model, 128256)
    assert cost.parameters == 8_030_261_248  # as published with the weights
    output = next(weight for weight in head_output_weights(loaded.model) if weight.name == "output")
    assert output.shape == (4096, 4096)
    assert (output.per_layer, output.all_layers) == (16_777_216, 536_870_912)
    assert 0.065 < output.all_layers / cost.parameters < 0.070


def test_a_smaller_rank_costs_less_in_every_column():
    standard = model_cost(config(context=64, head_output=StandardConfig()), 50)
    half = model_cost(config(context=64, head_output=FactorizedConfig(rank=4)), 50)
    assert half.parameters < standard.parameters
    assert half.training_flops_per_token < standard.training_flops_per_token
    own = {part.name.partition(" (")[0]: part for part in half.parts}["head outputs"]
    assert own.cache_numbers_per_token == 3 * 4 * 4

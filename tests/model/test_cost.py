"""Costs are counted from shapes; here they are compared with the parameters and with the program itself."""

import jax
import jax.numpy as jnp
import pytest

from tests.model.counting import product_flops
from wmresearch.config import load_run
from wmresearch.config.head_output import FactorizedConfig, StandardConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.weights import count, initialize
from wmresearch.model import Transformer, make_apply
from wmresearch.model.cost import head_output_weights, model_cost

SHAPES = [
    {"context": 64},
    {"context": 150, "bias": False, "norm": "rmsnorm", "mlp": "swiglu", "positions": "rope", "tie_embeddings": False},
    {"context": 64, "n_kv_heads": 1, "d_head": 24},
    {"context": 70, "n_kv_heads": 2, "head_output": FactorizedConfig(rank=5)},
    {"context": 64, "head_output": FactorizedConfig(rank=32, bias=False)},
]


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
    params = jax.eval_shape(lambda: initialize(transformer, jax.random.key(0)))
    tokens = jax.ShapeDtypeStruct((2, model.context), jnp.int32)
    loss = lambda params, tokens: jnp.sum(apply(params, tokens))
    program = jax.make_jaxpr(jax.grad(loss))(params, tokens)
    counted = model_cost(model, 50).training_flops_per_token * 2 * model.context
    assert counted == pytest.approx(product_flops(program.jaxpr), rel=1e-12)


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

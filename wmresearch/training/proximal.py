"""Changes of the heads' factors after an optimizer's step: proximal steps and rebalancing."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from wmresearch.algebra import FactoredMatrix, proxes
from wmresearch.config.penalty import GroupLassoPenalty, ProximalPenaltyConfig
from wmresearch.head_output.base import LowRankOutput
from wmresearch.head_output.weights import Params
from wmresearch.model.maps import at_least_float32
from wmresearch.model.transformer import Transformer
from wmresearch.training.penalties import strength
from wmresearch.training.step import Metrics, StepFacts

Change = Callable[[Params, StepFacts], tuple[Params, Metrics]]


def change_factors(
    transformer: Transformer, of: Callable[[FactoredMatrix], FactoredMatrix], *, fold_biases: bool = False
) -> Callable[[Params], Params]:
    """Parameters with the stored factors of every layer's heads changed.

    The function has the maps of a layer as `[k, d, r]` and `[k, r, g·d]`, in float32 or better: the g query heads that
    share A are one matrix [M_1 … M_g]. Biases a of what heads read are written through B: where the function keeps the
    maps, `fold_biases` keeps what the layer computes too, with Σ_i a_i B_i in the output bias and a = 0.
    """
    graph, _ = nnx.split(transformer)

    def change(params: Params) -> Params:
        model = nnx.merge(graph, params)
        for block in model.blocks:
            output = block.attention.head_output
            assert isinstance(output, LowRankOutput)  # the config allows no other
            if fold_biases and output.value_bias is not None and output.output_bias is not None:
                output.output_bias[...] = output.bias_written()
                output.value_bias[...] = jnp.zeros_like(output.value_bias[...])
            stored = output.stored()
            dtype = stored.a.dtype
            new = of(at_least_float32(stored))
            output.store(FactoredMatrix(new.a.astype(dtype), new.b.astype(dtype)))
        return nnx.to_pure_dict(nnx.state(model, nnx.Param))

    return change


def make_proximal_step(config: ProximalPenaltyConfig, transformer: Transformer, steps: int) -> Change:
    """The prox of λ · learning rate times the penalty, on A B as stored.

    Metric: `penalty/KIND_threshold`, λ · learning rate.
    """

    def change(params: Params, facts: StepFacts) -> tuple[Params, Metrics]:
        threshold = strength(config, steps, facts.step) * facts.learning_rate

        def prox(matrix: FactoredMatrix) -> FactoredMatrix:
            if isinstance(config, GroupLassoPenalty):
                assert config.groups != "blocks"
                return proxes.group_lasso(matrix, threshold, config.groups)
            return (proxes.nuclear if config.kind == "nuclear" else proxes.l1)(matrix, threshold)

        return change_factors(transformer, prox)(params), {f"penalty/{config.kind}_threshold": threshold}

    return change


def make_rebalancing(every: int, transformer: Transformer) -> Change:
    """Every n-th step, each M = A B gets its balanced factors U √S, √S Vᵀ (AᵀA = BBᵀ): the same function.

    Biases of what heads read become part of the output bias, since attention rows sum to one.

    Columns of A that are zero with their rows of B (a rank below the layer's largest) become as many exact zeros again.
    The optimizer's moments stay as they are, though they belong to the old factors.
    """

    def balanced(matrix: FactoredMatrix) -> FactoredMatrix:
        used = jnp.any(matrix.a != 0, axis=-2) | jnp.any(matrix.b != 0, axis=-1)
        held = jnp.arange(matrix.rank)[None] < jnp.sum(used, axis=-1)[:, None]
        new = matrix.balance()
        return FactoredMatrix(jnp.where(held[:, None, :], new.a, 0), jnp.where(held[:, :, None], new.b, 0))

    balance = change_factors(transformer, balanced, fold_biases=True)

    def change(params: Params, facts: StepFacts) -> tuple[Params, Metrics]:
        due = (facts.step + 1) % every == 0
        return jax.lax.cond(due, balance, lambda params: params, params), {}

    return change

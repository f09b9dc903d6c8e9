"""What a model costs, counted from the shapes of its own parameters: nothing is allocated.

Operations are those of the matrix products in the compiled program (2 for each multiply-add): attention counts the keys
that a block of queries is really multiplied with, and a masked dense map counts as dense. A training step costs three
forward passes: the backward pass of y = x W takes two products of the same size.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from flax import nnx

from wmresearch.config.model import ModelConfig
from wmresearch.head_output import weights
from wmresearch.head_output.orders import attended_keys
from wmresearch.model.transformer import Transformer

TRAINING_FACTOR = 3


@dataclass(frozen=True)
class PartCost:
    """One part of the model, over all layers."""

    name: str
    parameters: int
    forward_flops_per_token: float
    cache_numbers_per_token: int = 0
    """Numbers that generation keeps of each past token."""
    all_reduce_numbers_per_token: int = 0
    """Numbers summed over devices in a forward pass where the heads (and the MLP) are spread over devices."""


@dataclass(frozen=True)
class Cost:
    """All parts of the model."""

    parts: tuple[PartCost, ...]
    head_output_parameters: int
    """The head outputs' own (values and what writes them), over all layers."""
    head_output_nonzeros: int
    """Those of them that are not held at zero."""
    masked_dense: bool
    """Whether the head outputs compute with zeros: then what is held at zero saves no operations."""

    @property
    def parameters(self) -> int:
        return sum(part.parameters for part in self.parts)

    @property
    def training_flops_per_token(self) -> float:
        return TRAINING_FACTOR * sum(part.forward_flops_per_token for part in self.parts)


def model_cost(model: ModelConfig, vocab_size: int, attended: float | None = None) -> Cost:
    """The cost of a model at its full context; `attended`: keys a query, unless given those of the program."""
    transformer = Transformer(model, vocab_size)
    attended = attended_keys(model.context) if attended is None else attended
    layers, d = len(transformer.blocks), model.d_model
    block, head_output = transformer.blocks[0], transformer.blocks[0].attention.head_output
    attentions = nnx.List([each.attention for each in transformer.blocks])  # their heads and ranks may differ
    outputs = nnx.List([attention.head_output for attention in attentions])
    own = weights.count(outputs)
    output_flops = sum(output.flops_per_token(attended) for output in outputs)
    scores = weights.count(attentions) - own
    norms = layers * (weights.count(block.attention_norm) + weights.count(block.mlp_norm))
    norms += weights.count(transformer.final_norm)
    mlp = layers * weights.count(block.mlp)
    untied = 0 if model.tie_embeddings else d * vocab_size
    embedding = weights.count(transformer) - own - scores - norms - mlp - untied
    parts = (
        PartCost("embeddings", embedding, 0),
        PartCost(
            "queries, keys, scores",
            scores,
            sum(attention.flops_per_token(attended) for attention in attentions) - output_flops,
            sum(heads * width for heads, width in (attention.key_shape() for attention in attentions)),
        ),
        PartCost(
            f"head outputs ({head_output.kind})",
            own,
            output_flops,
            sum(output.cache_per_token() for output in outputs),
            layers * d,
        ),
        PartCost("MLP", mlp, layers * block.mlp.flops_per_token(), 0, layers * d),
        PartCost("norms", norms, 0),
        PartCost("logits" + (" (tied)" if model.tie_embeddings else ""), untied, 2.0 * d * vocab_size),
    )
    return Cost(parts, own, weights.count_nonzeros(outputs), head_output.masked_dense)


@dataclass(frozen=True)
class WeightShape:
    """A parameter of the head output in one layer, and what it adds up to."""

    name: str
    symbol: str
    """As in the formula of the head output."""
    shape: tuple[int, ...]
    per_layer: int
    all_layers: int
    nonzeros_all_layers: int
    """Without entries that are held at zero."""


def head_output_weights(model: ModelConfig) -> tuple[WeightShape, ...]:
    """The head output's own parameters, by name; shapes are those of the first layer."""
    outputs = [block.attention.head_output for block in Transformer(model, 1).blocks]
    layers = [weights.declared(output) for output in outputs]

    def shape(name: str) -> WeightShape:
        leaves = [(layer[name].get_raw_value(), layer[name].nonzeros) for layer in layers if name in layer]
        first, sizes = leaves[0][0], [leaf.size for leaf, _ in leaves]
        kept = sum(nonzeros for _, nonzeros in leaves)
        return WeightShape(name, outputs[0].symbol(name), first.shape, first.size, sum(sizes), kept)

    return tuple(map(shape, layers[0]))


def bytes_of(dtype: str) -> int:
    """Bytes of one number."""
    return jnp.dtype(dtype).itemsize

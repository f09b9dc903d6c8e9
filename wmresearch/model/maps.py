"""The heads' maps W_M of a model's parameters, for penalties and diagnostics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx

from wmresearch.algebra import FactoredMatrix
from wmresearch.head_output.weights import Params, Tree, cast_floats
from wmresearch.model.transformer import Transformer

Maps: TypeAlias = Callable[[Params], FactoredMatrix]
"""Parameters → M_i = A_i B_i of all layers and heads: A `[l, h, d, r]`, B `[l, h, r, d]`."""


def make_maps(transformer: Transformer) -> Maps:
    """The maps that the heads really apply to the normed, not yet scaled x: the norm's gain γ is folded into A.

    In float32 or better, whatever the parameters are in: no decomposition takes less.

    x ↦ (γ ∘ x) A B, so a map's rows are scaled by γ. γ gets no gradient through a map: queries and keys share it, and a
    penalty on the maps must not shrink what they read.
    """
    graph, _ = nnx.split(transformer)

    def maps(params: Params) -> FactoredMatrix:
        model = nnx.merge(graph, at_least_float32(params))
        a, b = [], []
        for block in model.blocks:
            factors = block.attention.head_output.factors()
            gain_d = jax.lax.stop_gradient(block.attention_norm.gain[...])
            a.append(gain_d[None, :, None] * factors.a)
            b.append(factors.b)
        r = max(factor.shape[-1] for factor in a)  # layers of lower rank are padded with zeros
        a = [jnp.pad(factor, ((0, 0), (0, 0), (0, r - factor.shape[-1]))) for factor in a]
        b = [jnp.pad(factor, ((0, 0), (0, r - factor.shape[-2]), (0, 0))) for factor in b]
        return FactoredMatrix(jnp.stack(a), jnp.stack(b))

    return maps


def at_least_float32(params: Tree) -> Tree:
    """Arrays as matrix decompositions take them: narrower floating-point types as float32."""
    return cast_floats(params, lambda dtype: jnp.promote_types(dtype, jnp.float32))

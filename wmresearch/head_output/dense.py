"""Each head's value-output map as a free d × d matrix."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from wmresearch.algebra import FactoredMatrix
from wmresearch.config.head_output import DenseConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.base import HeadOutput, WholeReading, full_rank, write_heads
from wmresearch.head_output.orders import PathCost
from wmresearch.head_output.weights import Normal, along_heads, weight


class DenseHeadOutput(WholeReading):
    """y = Σ_i P_i x M_i, M `[h, d, d]` free: a strict superset of the factorized maps with h/2 times the parameters.

    A head reads x itself (r = d) and writes z_i M_i. Entries start with the standard product's standard deviation.
    """

    kind = "dense"
    symbols = {"map": "M"}

    def __init__(self, config: DenseConfig, model: ModelConfig, layer: int, first: HeadOutput | None) -> None:
        d, h = model.d_model, model.n_heads
        self.map = weight((h, d, d), Normal(model.product_std), model.param_dtype, along=along_heads(0))
        super().__init__(config, model, layer, first)

    def write(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t d"]:
        return write_heads(z_bthr, self.map[...])

    def write_each(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t h d"]:
        return jnp.einsum("bthr,hrd->bthd", z_bthr, self.map[...])

    def path_cost(self) -> PathCost:
        h, d, _ = self.map.shape
        return self.whole_cost(d, h, write=2.0 * h * d * d)

    def factors(self) -> FactoredMatrix:
        return full_rank(self.map[...])

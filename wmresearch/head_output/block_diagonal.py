"""A map made of blocks on the diagonal."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from wmresearch.algebra import FactoredMatrix
from wmresearch.config.head_output import BlockDiagonalConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.base import HeadOutput, WholeReading, full_rank
from wmresearch.head_output.orders import PathCost
from wmresearch.head_output.weights import Normal, along_heads, weight


class BlockDiagonalHeadOutput(WholeReading):
    """M_i = diag(D_i1, …, D_in), D `[h, n, q, q]` with n q = d.

    Entries of the blocks start √n times as large as the standard product's, so that ‖M_i‖_F starts equal.
    """

    kind = "block_diagonal"
    symbols = {"block": "D"}

    def __init__(self, config: BlockDiagonalConfig, model: ModelConfig, layer: int, first: HeadOutput | None) -> None:
        n = config.blocks
        q = model.d_model // n
        start = Normal(model.product_std * n**0.5)
        self.block = weight((model.n_heads, n, q, q), start, model.param_dtype, along=along_heads(0))
        super().__init__(config, model, layer, first)

    def write_each(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t h d"]:
        return jnp.einsum("bthnq,hnqp->bthnp", self._blocks(z_bthr), self.block[...]).reshape(z_bthr.shape)

    def write(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t d"]:
        y = jnp.einsum("bthnq,hnqp->btnp", self._blocks(z_bthr), self.block[...])
        return y.reshape(*z_bthr.shape[:2], -1)

    def _blocks(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t h n q"]:
        _, n, q, _ = self.block.shape
        return z_bthr.reshape(*z_bthr.shape[:3], n, q)

    def path_cost(self) -> PathCost:
        h, n, q, _ = self.block.shape
        return self.whole_cost(n * q, h, write=2.0 * h * n * q * q)

    def factors(self) -> FactoredMatrix:
        h, n, q, _ = self.block.shape
        return full_rank(jnp.einsum("hnqp,nm->hnqmp", self.block[...], jnp.eye(n)).reshape(h, n * q, n * q))

"""A map as two block-diagonal matrices with a permutation between."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from wmresearch.algebra import FactoredMatrix
from wmresearch.config.head_output import MonarchConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.base import HeadOutput, WholeReading, full_rank
from wmresearch.head_output.orders import PathCost
from wmresearch.head_output.weights import Normal, along_heads, weight


class MonarchHeadOutput(WholeReading):
    """M_i = R_i Π L_i Πᵀ: with x as an n × q matrix, R_i acts on each row and then L_i on each column.

    R `[h, n, q, q]`, L `[h, q, n, n]`, n q = d; Π is the transposition of the n × q matrix. Each entry of M_i is a
    product of one entry of each, so both start with the root of the standard product's standard deviation.
    Dao et al. 2022 (arXiv 2204.00595).
    """

    kind = "monarch"
    symbols = {"rows": "R", "columns": "L"}

    def __init__(self, config: MonarchConfig, model: ModelConfig, layer: int, first: HeadOutput | None) -> None:
        h, n = model.n_heads, config.blocks
        q = model.d_model // n
        start = Normal(model.product_std**0.5)
        self.rows = weight((h, n, q, q), start, model.param_dtype, along=along_heads(0))
        self.columns = weight((h, q, n, n), start, model.param_dtype, along=along_heads(0))
        super().__init__(config, model, layer, first)

    def write_each(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t h d"]:
        _, n, q, _ = self.rows.shape
        grid = z_bthr.reshape(*z_bthr.shape[:3], n, q)
        through_rows = jnp.einsum("bthnq,hnqp->bthnp", grid, self.rows[...])
        return jnp.einsum("bthnp,hpnm->bthmp", through_rows, self.columns[...]).reshape(z_bthr.shape)

    def write(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t d"]:
        return self.write_each(z_bthr).sum(axis=2)

    def path_cost(self) -> PathCost:
        h, n, q, _ = self.rows.shape
        return self.whole_cost(n * q, h, write=2.0 * h * n * q * (n + q), write_moved=2 * h * n * q)

    def factors(self) -> FactoredMatrix:
        h, n, q, _ = self.rows.shape
        return full_rank(jnp.einsum("hnqp,hpnm->hnqmp", self.rows[...], self.columns[...]).reshape(h, n * q, n * q))

"""A map of low rank and a diagonal."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from wmresearch.algebra import FactoredMatrix
from wmresearch.config.head_output import LowRankDiagonalConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.base import HeadOutput, full_rank, low_rank_cost, low_rank_factors, read_heads, write_heads
from wmresearch.head_output.orders import PathCost
from wmresearch.head_output.weights import (
    Constant,
    Normal,
    along_heads,
    along_key_heads,
    read_axes,
    weight,
    write_axes,
)


class LowRankDiagonalHeadOutput(HeadOutput):
    """M_i = A_i B_i + diag(c_i); A `[d, k, r]`, B `[h, r, d]`, c `[h, d]`.

    A head reads (x A_i, x), of width r + d, and writes z₁ B_i + z₂ ∘ c_i. The diagonal starts at zero, so the first
    step's function is that of the factorized kind with the same rank.
    """

    kind = "low_rank_diagonal"
    symbols = {"factor_a": "A", "factor_b": "B", "diagonal": "c"}

    def __init__(self, config: LowRankDiagonalConfig, model: ModelConfig, layer: int, first: HeadOutput | None) -> None:
        d, h, k, r = model.d_model, model.n_heads, model.kv_heads, config.rank
        matched = (model.head_width / r) ** 0.25
        of_a, of_b, dtype = Normal(model.init_std * matched), Normal(model.residual_std * matched), model.param_dtype
        self.factor_a = weight((d, k, r), of_a, dtype, axes=read_axes(), along=along_key_heads(1))
        self.factor_b = weight((h, r, d), of_b, dtype, axes=write_axes(), along=along_heads(0))
        self.diagonal = weight((h, d), Constant(0.0), dtype, axes=None, along=along_heads(0))
        super().__init__(config, model, layer, first)

    def read_linear(self, x_btkd: Float[Array, "b t h|1 d"]) -> Float[Array, "b t k r"]:
        low_btkr = read_heads(x_btkd, self.factor_a[...])
        whole = jnp.broadcast_to(x_btkd, (*low_btkr.shape[:3], x_btkd.shape[-1]))
        return jnp.concatenate([low_btkr, whole], axis=-1)

    def write(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t d"]:
        low, whole = self._parts(z_bthr)
        return write_heads(low, self.factor_b[...]) + jnp.sum(whole * self._diagonal(), axis=2)

    def write_each(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t h d"]:
        low, whole = self._parts(z_bthr)
        return jnp.einsum("bthr,hrd->bthd", low, self.factor_b[...]) + whole * self._diagonal()

    def _parts(self, z_bthr: Float[Array, "b t h r"]) -> list[Array]:
        return jnp.split(z_bthr, [self.factor_a.shape[2]], axis=-1)

    def _diagonal(self) -> Float[Array, "1 1 h d"]:
        return self.diagonal[...][None, None]

    def path_cost(self) -> PathCost:
        d, k, r = self.factor_a.shape
        return dataclasses.replace(low_rank_cost(d, k, self.factor_b.shape[0], r), width=r + d, copied=d)

    def factors(self) -> FactoredMatrix:
        low = low_rank_factors(self.factor_a[...], self.factor_b[...]).dense()
        d = low.shape[-1]
        return full_rank(low + self.diagonal[...][..., None] * jnp.eye(d, dtype=low.dtype)[None])

"""A map as a sum of Kronecker products."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from wmresearch.algebra import FactoredMatrix
from wmresearch.config.head_output import KroneckerConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.base import HeadOutput, WholeReading, full_rank
from wmresearch.head_output.orders import PathCost
from wmresearch.head_output.weights import Normal, along_heads, weight


class KroneckerHeadOutput(WholeReading):
    """M_i = Σ_s P_is ⊗ Q_is, P `[h, s, p, p]`, Q `[h, s, q, q]`, p q = d: with x as a p × q matrix, P_isᵀ x Q_is.

    Entries of M_i start with the standard product's standard deviation σ: σ_P = σ_Q = (σ / √s)^½.
    """

    kind = "kronecker"
    symbols = {"outer": "P", "inner": "Q"}

    def __init__(self, config: KroneckerConfig, model: ModelConfig, layer: int, first: HeadOutput | None) -> None:
        h, s, p = model.n_heads, config.terms, config.outer
        q = model.d_model // p
        start = Normal((model.product_std / s**0.5) ** 0.5)
        self.outer = weight((h, s, p, p), start, model.param_dtype, along=along_heads(0))
        self.inner = weight((h, s, q, q), start, model.param_dtype, along=along_heads(0))
        super().__init__(config, model, layer, first)

    def write_each(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t h d"]:
        p, q = self.outer.shape[2], self.inner.shape[2]
        grid = z_bthr.reshape(*z_bthr.shape[:3], p, q)
        right = jnp.einsum("bthpq,hsqv->bthspv", grid, self.inner[...])
        return jnp.einsum("bthspv,hspu->bthuv", right, self.outer[...]).reshape(z_bthr.shape)

    def write(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t d"]:
        return self.write_each(z_bthr).sum(axis=2)

    def path_cost(self) -> PathCost:
        h, s, p, _ = self.outer.shape
        q = self.inner.shape[2]
        return self.whole_cost(p * q, h, write=2.0 * h * s * p * q * (p + q), write_moved=2 * h * p * q)

    def factors(self) -> FactoredMatrix:
        h, _, p, _ = self.outer.shape
        d = p * self.inner.shape[2]
        return full_rank(jnp.einsum("hspu,hsqv->hpquv", self.outer[...], self.inner[...]).reshape(h, d, d))

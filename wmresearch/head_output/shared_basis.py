"""Heads that share what they read and where they write, and differ in a small core."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from wmresearch.algebra import FactoredMatrix
from wmresearch.config.head_output import SharedBasisConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.base import HeadOutput, write_heads
from wmresearch.head_output.orders import PathCost
from wmresearch.head_output.weights import Normal, along_heads, weight


class SharedBasisHeadOutput(HeadOutput):
    """y = Σ_i P_i x U C_i V, U `[d, u]` and V `[u, d]` shared by the heads of a layer or of the model, C `[h, u, u]`.

    All heads read the same z = x U (one value head, as in multi-query attention), and the sum over heads is taken
    before V. Entries of M_i start with the standard product's standard deviation σ: σ_U σ_C σ_V u = σ, all equal.
    """

    kind = "shared_basis"
    basis_in: nnx.Param
    basis_out: nnx.Param
    symbols = {"basis_in": "U", "core": "C", "basis_out": "V"}

    def __init__(self, config: SharedBasisConfig, model: ModelConfig, layer: int, first: HeadOutput | None) -> None:
        d, h, u = model.d_model, model.n_heads, config.rank
        start = Normal((model.product_std / u) ** (1 / 3))
        self.core = weight((h, u, u), start, model.param_dtype, along=along_heads(0))
        if config.share == "model" and isinstance(first, SharedBasisHeadOutput):
            self.basis_in, self.basis_out = first.basis_in, first.basis_out
        else:
            self.basis_in = weight((d, u), start, model.param_dtype)
            self.basis_out = weight((u, d), start, model.param_dtype)
        super().__init__(config, model, layer, first)

    def read_linear(self, x_btkd: Float[Array, "b t h|1 d"]) -> Float[Array, "b t k r"]:
        b, t, k, d = x_btkd.shape
        return (x_btkd.reshape(b * t * k, d) @ self.basis_in[...]).reshape(b, t, k, -1)

    def write(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t d"]:
        return write_heads(z_bthr, self.core[...]) @ self.basis_out[...]

    def write_each(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t h d"]:
        return jnp.einsum("bthr,hrs->bths", z_bthr, self.core[...]) @ self.basis_out[...]

    def path_cost(self) -> PathCost:
        (d, u), h = self.basis_in.shape, self.core.shape[0]
        one, cores = 2.0 * d * u, 2.0 * h * u * u
        return PathCost(d, h, 1, u, read=one, read_each=h * one, write=cores + one, write_each=cores + h * one)

    def factors(self) -> FactoredMatrix:
        h, u, _ = self.core.shape
        a = jnp.einsum("dr,hrs->hds", self.basis_in[...], self.core[...])
        return FactoredMatrix(a, jnp.broadcast_to(self.basis_out[...], (h, u, a.shape[1])))

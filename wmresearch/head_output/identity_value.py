"""Heads that read slices of the residual stream as they are."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from wmresearch.algebra import FactoredMatrix
from wmresearch.config.head_output import IdentityValueConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.base import HeadOutput, write_heads
from wmresearch.head_output.orders import PathCost
from wmresearch.head_output.weights import Normal, along_heads, weight


class IdentityValueHeadOutput(HeadOutput):
    """y = Σ_i P_i x_(i) W_O_i, x_(i) the i-th slice of x: M_i = S_iᵀ W_O_i, W_O `[h·r, d]`, h r = d.

    Entries of W_O start √h times as large as the standard product's, so that ‖M_i‖_F starts equal.
    """

    kind = "identity_value"
    symbols = {"output": "W_O"}

    def __init__(self, config: IdentityValueConfig, model: ModelConfig, layer: int, first: HeadOutput | None) -> None:
        d, self.width = model.d_model, model.head_width
        start = Normal(model.product_std * model.n_heads**0.5)
        self.output = weight((d, d), start, model.param_dtype, along=along_heads(0))
        super().__init__(config, model, layer, first)

    def read_linear(self, x_btkd: Float[Array, "b t h|1 d"]) -> Float[Array, "b t k r"]:
        b, t, given, d = x_btkd.shape
        h = d // self.width
        slices = x_btkd.reshape(b, t, given, h, self.width)
        own = self.of_own_heads(jnp.arange(h))
        if given == 1:
            return slices[:, :, 0] if self.places is None else slices[:, :, 0, own]
        return slices[:, :, jnp.arange(given), own]

    def _output_hrd(self) -> Float[Array, "h r d"]:
        return self.output[...].reshape(-1, self.width, self.output.shape[1])

    def write(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t d"]:
        return write_heads(z_bthr, self._output_hrd())

    def write_each(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t h d"]:
        return jnp.einsum("bthr,hrd->bthd", z_bthr, self._output_hrd())

    def path_cost(self) -> PathCost:
        d = self.output.shape[1]
        h, each = d // self.width, 2.0 * d * d
        return PathCost(d, h, h, self.width, read=0.0, read_each=0.0, write=each, write_each=each, copied=self.width)

    def factors(self) -> FactoredMatrix:
        d = self.output.shape[1]
        a = jnp.moveaxis(jnp.eye(d, dtype=self.output.dtype).reshape(d, -1, self.width), 1, 0)
        return FactoredMatrix(a, self._output_hrd())

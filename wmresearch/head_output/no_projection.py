"""No output projection at all."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from wmresearch.config.head_output import NoOutputConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.base import HeadOutput, LowRankOutput, low_rank_cost
from wmresearch.head_output.orders import PathCost
from wmresearch.head_output.weights import Normal, along_key_heads, read_axes, weight


class NoProjectionHeadOutput(LowRankOutput):
    """y = concat_i(P_i x W_V_i): head i writes to its own slice of the residual stream, and the MLP has to mix.

    M_i = W_V_i S_i, S_i the rows of the identity that belong to slice i; W_V `[d, k, r]`, h r = d. Entries in the slice
    start √h times as large as the standard product's, so that ‖M_i‖_F starts equal.
    """

    kind = "none"
    symbols = {"value": "W_V"}

    def __init__(self, config: NoOutputConfig, model: ModelConfig, layer: int, first: HeadOutput | None) -> None:
        d, k, r = model.d_model, model.kv_heads, model.head_width
        start = Normal(model.product_std * model.n_heads**0.5)
        self.value = weight((d, k, r), start, model.param_dtype, axes=read_axes(), along=along_key_heads(1))
        super().__init__(config, model, layer, first)

    def read_weight(self) -> Float[Array, "d k r"]:
        return self.value[...]

    def write_weight(self) -> Float[Array, "h r d"]:
        d, _, r = self.value.shape
        return self.of_own_heads(jnp.eye(d, dtype=self.value.dtype).reshape(-1, r, d))

    def write(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t d"]:
        return self.devices.joined(z_bthr, self.places)

    def whole(self, y_btd: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """`write` has brought the slices of all devices together; `write_each` has not."""
        return y_btd if self.side_by_side else self.devices.total(y_btd)

    @property
    def side_by_side(self) -> bool:
        return self.order != "modify_then_attend"

    def path_cost(self) -> PathCost:
        d, k, r = self.value.shape
        return dataclasses.replace(low_rank_cost(d, k, d // r, r), write=0.0)

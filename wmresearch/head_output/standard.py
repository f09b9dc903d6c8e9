"""The standard head output: values, concatenation of the heads, one output projection W_O."""

from __future__ import annotations

from jaxtyping import Array, Float

from wmresearch.config.head_output import StandardConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.base import HeadOutput, LowRankOutput, low_rank_cost
from wmresearch.head_output.orders import PathCost
from wmresearch.head_output.weights import Normal, along_heads, along_key_heads, read_axes, weight, write_axes


class StandardHeadOutput(LowRankOutput):
    """y = concat_i(P_i (x W_V_i + b_V_i)) W_O + b_O, so M_i = W_V_i W_O_i with W_O_i the i-th r rows of W_O.

    `value` is W_V `[d, k, r]`, `output` is W_O `[h·r, d]`, r = `d_head`. Vaswani et al. 2017 (arXiv 1706.03762).
    """

    kind = "standard"
    symbols = {"value": "W_V", "output": "W_O", "value_bias": "b_V", "output_bias": "b_O"}

    def __init__(self, config: StandardConfig, model: ModelConfig, layer: int, first: HeadOutput | None) -> None:
        d, h, k, r = model.d_model, model.n_heads, model.kv_heads, model.head_width
        reading, writing = read_axes(), write_axes(view=(h, r, d))
        of_a, of_b, dtype = Normal(model.init_std), Normal(model.residual_std), model.param_dtype
        self.value = weight((d, k, r), of_a, dtype, axes=reading, along=along_key_heads(1))
        self.output = weight((h * r, d), of_b, dtype, axes=writing, along=along_heads(0))
        super().__init__(config, model, layer, first)

    def read_weight(self) -> Float[Array, "d k r"]:
        return self.value[...]

    def write_weight(self) -> Float[Array, "h r d"]:
        _, _, r = self.value.shape
        return self.output[...].reshape(-1, r, self.output.shape[1])

    def set_weights(self, read_dkr: Float[Array, "d k r"], write_hrd: Float[Array, "h r d"]) -> None:
        self.value[...] = read_dkr
        self.output[...] = write_hrd.reshape(self.output.shape)

    def path_cost(self) -> PathCost:
        d, k, r = self.value.shape
        return low_rank_cost(d, k, self.output.shape[0] // r, r)

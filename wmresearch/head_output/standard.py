"""The standard head output: values, concatenation of the heads, one output projection W_O."""

from __future__ import annotations

from jaxtyping import Array, Float

from wmresearch.algebra import FactoredMatrix
from wmresearch.config.head_output import StandardConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.base import HeadOutput, Mix
from wmresearch.head_output.value_path import attend_then_write, value_path_factors, value_path_flops
from wmresearch.head_output.weights import Normal, bias, value_or_none, weight


class StandardHeadOutput(HeadOutput):
    """y = concat_i(P_i (x W_V_i + b_V_i)) W_O + b_O, so M_i = W_V_i W_O_i with W_O_i the i-th r rows of W_O.

    `value` is W_V `[d, k, r]`, `output` is W_O `[h·r, d]`, r = `d_head`. Vaswani et al. 2017 (arXiv 1706.03762).
    """

    kind = "standard"
    symbols = {"value": "W_V", "output": "W_O", "value_bias": "b_V", "output_bias": "b_O"}

    def __init__(self, config: StandardConfig, model: ModelConfig) -> None:
        d, h, k, r = model.d_model, model.n_heads, model.kv_heads, model.head_width
        dtype = model.param_dtype
        self.heads = h
        self.value = weight((d, k, r), Normal(model.init_std), dtype)
        self.output = weight((h * r, d), Normal(model.residual_std), dtype)
        has_bias = model.bias if config.bias is None else config.bias
        self.value_bias = bias((k, r), dtype) if has_bias else None
        self.output_bias = bias((d,), dtype) if has_bias else None

    def _output_hrd(self) -> Float[Array, "h r d"]:
        _, _, r = self.value.shape
        return self.output[...].reshape(self.heads, r, -1)

    def __call__(self, x_btd: Float[Array, "b t d"], mix: Mix) -> Float[Array, "b t d"]:
        biases = value_or_none(self.value_bias), value_or_none(self.output_bias)
        return attend_then_write(x_btd, mix, self.value[...], self._output_hrd(), *biases)

    def factors(self) -> FactoredMatrix:
        return value_path_factors(self.value[...], self._output_hrd())

    def flops_per_token(self, attended: float) -> float:
        d, k, r = self.value.shape
        return value_path_flops(d, k, self.heads, r, attended)

    def cache_per_token(self) -> int:
        _, k, r = self.value.shape
        return k * r

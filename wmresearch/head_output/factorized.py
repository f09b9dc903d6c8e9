"""Each head's value-output map as a product of two factors of any rank."""

from __future__ import annotations

from jaxtyping import Array, Float

from wmresearch.algebra import FactoredMatrix
from wmresearch.config.head_output import FactorizedConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.base import HeadOutput, Mix
from wmresearch.head_output.value_path import attend_then_write, value_path_factors, value_path_flops
from wmresearch.head_output.weights import Normal, bias, value_or_none, weight


class FactorizedHeadOutput(HeadOutput):
    """y = Σ_i P_i (x A_i + a_i) B_i + b, M_i = A_i B_i of rank at most r, without a concatenation.

    `factor_a` is A `[d, k, r]` (query heads of one key/value head share it), `factor_b` is B `[h, r, d]`.

    The entries of M_i start with the standard deviation of the standard product's, σ_V σ_O √d_head, whatever the rank:
    both factors are scaled by (d_head / r)^¼, since the product's is σ_A σ_B √r.
    """

    kind = "factorized"
    symbols = {"factor_a": "A", "factor_b": "B", "value_bias": "a", "output_bias": "b"}

    def __init__(self, config: FactorizedConfig, model: ModelConfig) -> None:
        d, h, k, r = model.d_model, model.n_heads, model.kv_heads, config.rank
        dtype = model.param_dtype
        matched = (model.head_width / r) ** 0.25
        self.factor_a = weight((d, k, r), Normal(model.init_std * matched), dtype)
        self.factor_b = weight((h, r, d), Normal(model.residual_std * matched), dtype)
        has_bias = model.bias if config.bias is None else config.bias
        self.value_bias = bias((k, r), dtype) if has_bias else None
        self.output_bias = bias((d,), dtype) if has_bias else None

    def __call__(self, x_btd: Float[Array, "b t d"], mix: Mix) -> Float[Array, "b t d"]:
        biases = value_or_none(self.value_bias), value_or_none(self.output_bias)
        return attend_then_write(x_btd, mix, self.factor_a[...], self.factor_b[...], *biases)

    def factors(self) -> FactoredMatrix:
        return value_path_factors(self.factor_a[...], self.factor_b[...])

    def flops_per_token(self, attended: float) -> float:
        d, k, r = self.factor_a.shape
        return value_path_flops(d, k, self.factor_b.shape[0], r, attended)

    def cache_per_token(self) -> int:
        _, k, r = self.factor_a.shape
        return k * r

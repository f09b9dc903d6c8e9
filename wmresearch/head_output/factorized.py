"""Each head's value-output map as a product of two factors of any rank."""

from __future__ import annotations

from jaxtyping import Array, Float

from wmresearch.config.head_output import FactorizedConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.base import HeadOutput, LowRankOutput, low_rank_cost
from wmresearch.head_output.orders import PathCost
from wmresearch.head_output.weights import Normal, weight


class FactorizedHeadOutput(LowRankOutput):
    """y = Σ_i P_i (x A_i + a_i) B_i + b, M_i = A_i B_i of rank at most r, without a concatenation.

    `factor_a` is A `[d, k, r]` (query heads of one key/value head share it), `factor_b` is B `[h, r, d]`.

    The entries of M_i start with the standard deviation of the standard product's, σ_V σ_O √d_head, whatever the rank:
    both factors are scaled by (d_head / r)^¼, since the product's is σ_A σ_B √r.
    """

    kind = "factorized"
    symbols = {"factor_a": "A", "factor_b": "B"}

    def __init__(self, config: FactorizedConfig, model: ModelConfig, layer: int, first: HeadOutput | None) -> None:
        d, h, k, r = model.d_model, model.n_heads, model.kv_heads, config.rank
        matched = (model.head_width / r) ** 0.25
        self.factor_a = weight((d, k, r), Normal(model.init_std * matched), model.param_dtype)
        self.factor_b = weight((h, r, d), Normal(model.residual_std * matched), model.param_dtype)
        super().__init__(config, model, layer, first)

    def read_weight(self) -> Float[Array, "d k r"]:
        return self.factor_a[...]

    def write_weight(self) -> Float[Array, "h r d"]:
        return self.factor_b[...]

    def path_cost(self) -> PathCost:
        d, k, r = self.factor_a.shape
        return low_rank_cost(d, k, self.factor_b.shape[0], r)

"""Each head's value-output map as a product of two factors of any rank."""

from __future__ import annotations

from jaxtyping import Array, Float

from wmresearch.config.factor_start import GaugeStart, SpectralStart
from wmresearch.config.head_output import FactorizedConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.base import HeadOutput, LowRankOutput, low_rank_cost
from wmresearch.head_output.factor_starts import InGauge, PaddedNormal, SpectralFactor
from wmresearch.head_output.orders import PathCost
from wmresearch.head_output.weights import (
    Initializer,
    Normal,
    along_heads,
    along_key_heads,
    read_axes,
    weight,
    write_axes,
)


class FactorizedHeadOutput(LowRankOutput):
    """y = Σ_i P_i (x A_i + a_i) B_i + b, M_i = A_i B_i of rank at most r, without a concatenation.

    `factor_a` is A `[d, k, r]` (query heads of one key/value head share it), `factor_b` is B `[h, r, d]`. Heads of a
    lower rank than others of their layer have zero columns in A and zero rows in B, which stay zero: the gradient of
    each is a product with the other.

    The entries of M_i start with the standard deviation of the standard product's, σ_V σ_O √d_head, whatever the rank:
    both factors are scaled by (d_head / r)^¼, since the product's is σ_A σ_B √r. For other starts see `factor_starts`.
    """

    kind = "factorized"
    symbols = {"factor_a": "A", "factor_b": "B"}

    def __init__(self, config: FactorizedConfig, model: ModelConfig, layer: int, first: HeadOutput | None) -> None:
        d, h, k = model.d_model, model.n_heads, model.kv_heads
        ranks = config.layer_ranks(layer, model)
        r = max(ranks)
        of_a, of_b = _starts(config, model, ranks)
        stored = d * sum(ranks)
        dtype = model.param_dtype
        self.factor_a = weight((d, k, r), of_a, dtype, axes=read_axes(), nonzeros=stored, along=along_key_heads(1))
        kept = stored * h // k
        self.factor_b = weight((h, r, d), of_b, dtype, axes=write_axes(), nonzeros=kept, along=along_heads(0))
        super().__init__(config, model, layer, first)

    def read_weight(self) -> Float[Array, "d k r"]:
        return self.factor_a[...]

    def write_weight(self) -> Float[Array, "h r d"]:
        return self.factor_b[...]

    def set_weights(self, read_dkr: Float[Array, "d k r"], write_hrd: Float[Array, "h r d"]) -> None:
        self.factor_a[...] = read_dkr
        self.factor_b[...] = write_hrd

    def path_cost(self) -> PathCost:
        d, k, r = self.factor_a.shape
        return low_rank_cost(d, k, self.factor_b.shape[0], r)


def _starts(config: FactorizedConfig, model: ModelConfig, ranks: tuple[int, ...]) -> tuple[Initializer, Initializer]:
    """How A and B start."""
    if isinstance(config.init, SpectralStart):
        write = (model.n_heads // model.kv_heads) * model.d_model
        return tuple(SpectralFactor(side, model.product_std, ranks, write) for side in ("a", "b"))  # type: ignore[return-value]
    scales = [(model.head_width / max(rank, 1)) ** 0.25 for rank in ranks]
    stds = [[std * scale for scale in scales] for std in (model.init_std, model.residual_std)]
    if len(set(ranks)) > 1:
        return PaddedNormal("a", tuple(stds[0]), ranks), PaddedNormal("b", tuple(stds[1]), ranks)
    a, b = Normal(stds[0][0]), Normal(stds[1][0])
    if isinstance(config.init, GaugeStart):
        return InGauge("a", a, config.init.condition, len(ranks)), InGauge("b", b, config.init.condition, len(ranks))
    return a, b

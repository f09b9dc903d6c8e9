"""Heads that write through an orthogonal matrix that is not trained."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float
from numpy.typing import NDArray

from wmresearch.config.head_output import FixedOrthogonalConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.base import HeadOutput, LowRankOutput, low_rank_cost
from wmresearch.head_output.orders import PathCost
from wmresearch.head_output.weights import Normal, along_key_heads, read_axes, weight


class FixedOrthogonalHeadOutput(LowRankOutput):
    """y = concat_i(P_i x W_V_i) Q, Q `[d, d]` orthogonal and fixed: M_i = W_V_i Q_i, Q_i the i-th r rows.

    Q is the Hadamard matrix over √d where d is a power of 2 (Sylvester's construction), else the Q of a fixed Gaussian
    matrix; the same in every layer and run. Entries of M_i start with the standard product's standard deviation.
    """

    kind = "fixed_orthogonal"
    symbols = {"value": "W_V"}

    def __init__(self, config: FixedOrthogonalConfig, model: ModelConfig, layer: int, first: HeadOutput | None) -> None:
        d, k, r = model.d_model, model.kv_heads, model.head_width
        start = Normal(model.product_std * (d / r) ** 0.5)
        self.value = weight((d, k, r), start, model.param_dtype, axes=read_axes(), along=along_key_heads(1))
        super().__init__(config, model, layer, first)

    def read_weight(self) -> Float[Array, "d k r"]:
        return self.value[...]

    def write_weight(self) -> Float[Array, "h r d"]:
        d, _, r = self.value.shape
        return self.of_own_heads(jnp.asarray(orthogonal(d), self.value.dtype).reshape(-1, r, d))

    def path_cost(self) -> PathCost:
        d, k, r = self.value.shape
        return low_rank_cost(d, k, d // r, r)


def orthogonal(d: int) -> NDArray[np.float64]:
    """An orthogonal d × d matrix that depends on d alone."""
    if d & (d - 1) == 0:
        return scipy.linalg.hadamard(d) / np.sqrt(d)
    q, upper = np.linalg.qr(np.random.default_rng(d).standard_normal((d, d)))
    return q * np.sign(np.diag(upper))

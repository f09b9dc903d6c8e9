"""Tasks with a known answer, made as they are asked for: nothing is prepared or read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class Channels:
    """Copying through channels of known rank: y_t = Σ_i x_{t−i} M_i + ε, with M_i = U_i V_iᵀ of rank ρ_i.

    x is white, U_i and V_i have ρ_i orthonormal columns, ε has the standard deviation `noise` in each entry. A head
    that attends to the token i before is channel i. Under the loss −ln p(y | ŷ) of N(ŷ, `noise`²), whose least is that
    of ŷ = Σ_i x_{t−i} M_i, each direction that is missing costs 1 / (2 `noise`²) nats a token, and none that is not in
    M_i gains anything: the smallest sufficient ranks are the ρ_i.
    """

    width: int
    """d."""
    ranks: Sequence[int]
    """ρ_i of each channel."""
    context: int
    seed: int = 0
    noise: float = 2.0

    def maps(self) -> Float[np.ndarray, "h d d"]:
        """The M_i."""
        return np.stack([u @ v.T for u, v in self._factors])

    @cached_property
    def _factors(self) -> list[Float[np.ndarray, "2 d r"]]:
        draw = np.random.default_rng([self.seed, 0])
        return [np.linalg.qr(draw.standard_normal((2, self.width, rank))).Q for rank in self.ranks]

    def attention(self) -> Float[np.ndarray, "h t t"]:
        """P_i: one at the token i before; zero where there is none."""
        return np.stack([np.eye(self.context, k=-i) for i in range(len(self.ranks))])

    def batch(self, step: int, size: int) -> tuple[Float[np.ndarray, "b t d"], Float[np.ndarray, "b t d"]]:
        """The x and y of a step: a function of seed and step."""
        draw = np.random.default_rng([self.seed, 1, step])
        x = draw.standard_normal((size, self.context, self.width))
        y = self.noise * draw.standard_normal(x.shape)
        for i, (u, v) in enumerate(self._factors):
            y[:, i:] += x[:, : self.context - i] @ u @ v.T
        return x, y

    def cost_of(self, maps: Float[np.ndarray, "h d d"]) -> float:
        """Nats a token that other maps N lose to the M_i, where all channels reach: ‖N − M‖² / (2 noise²)."""
        return float(np.square(maps - self.maps()).sum() / (2 * self.noise**2))

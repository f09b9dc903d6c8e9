"""How heads find their ranks while they train: what is kept at the cut, and how it is found out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from wmresearch.config.base import Check, Config, NameAsKind


class FixedRanks(Config):
    """The ranks that the run starts with."""

    kind: Literal["fixed"] = "fixed"


class HardConcrete(Config):
    """A stochastic gate on each direction, and the expected number of open ones (L0) in the loss.

    Louizos et al. 2018 (arXiv 1712.01312); temperature and stretch of Voita et al. 2019 (arXiv 1905.09418). The cut
    keeps the directions that are likeliest to be open.
    """

    kind: Literal["hard_concrete"] = "hard_concrete"
    heads: bool = False
    """Whether each head has a gate of its own too, which closes all of its directions."""
    strength: float | None = Field(default=None, ge=0)
    """λ, nats in the loss for each direction that is open; null steers it so that `total_rank` are."""
    end: float = Field(default=0.6, gt=0, le=1)
    """Of the steps before the cut: the number that λ is steered to falls linearly until then, to `total_rank`."""
    gain: float = Field(default=0.02, gt=0)
    """How fast ln λ follows ln(expected / wanted), each step."""
    initial: float = Field(default=1e-4, gt=0)
    """λ where expected and wanted are equal at the first step."""
    start: float = 2.0
    """log α of each gate at first: open with probability 1 / (1 + exp(−start − .79))."""
    speed: float = Field(default=10.0, gt=0)
    """How many times as fast as other parameters log α learns: gates have to travel further than weights do."""


class Budgeted(Config):
    """M = A diag(s) B under a global budget that falls: the directions of least importance have s = 0, and may return.

    Importance is |p ∂loss/∂p| of s, and of A's column and B's row on average, smoothed, times its smoothed deviation
    from that. The budget stays whole for `begin`, then falls by a cubic to `total_rank` at `end`. AdaLoRA: Zhang et al.
    2023 (arXiv 2303.10512), who smooth each entry, and add `orthogonal_factors` at strength .1: a penalty here.
    """

    kind: Literal["budgeted"] = "budgeted"
    begin: float = Field(default=0.1, ge=0, lt=1)
    """Of the steps before the cut."""
    end: float = Field(default=0.7, gt=0, le=1)
    """Of the steps before the cut."""
    every: int = Field(default=10, ge=1)
    """Steps between choices of the directions with s = 0."""
    smoothing: float = Field(default=0.85, ge=0, lt=1)
    """β of both moving averages."""

    def checks(self) -> Iterator[Check]:
        if self.begin >= self.end:
            yield Check("begin", f"less than end = {self.end}", ("end",))


class Nested(Config):
    """Each step trains only the first m directions of every head, m drawn evenly from 1 to the rank.

    So directions are in the order of their use, and the model can be cut at any rank. The cut keeps the first of each
    head. Rippel et al. 2014 (arXiv 1402.0915), who draw m from a geometric distribution.
    """

    kind: Literal["nested"] = "nested"


class Energy(Config):
    """At the steps of `compact_at`, the singular directions that hold a share of each layer's Σ σ²; then the largest.

    The cut keeps the directions of the largest share of their layer's Σ σ². Exact, through the factored SVD of the maps
    with the norm's gain folded in.
    """

    kind: Literal["energy"] = "energy"
    share: float = Field(default=0.99, gt=0, le=1)
    whitened: bool = False
    """Whether maps count by what they do to the layer's inputs x: σ of (E[x xᵀ])^½ M, over a batch of training."""


class RandomRanks(Config):
    """Control: ranks drawn at random, evenly over all that sum to `total_rank`; the largest σ of each head are kept."""

    kind: Literal["random"] = "random"


class UniformRanks(Config):
    """Control: equal ranks (the first heads have one more where they must); the largest σ of each head are kept."""

    kind: Literal["uniform"] = "uniform"


RankMethod = Annotated[
    FixedRanks | HardConcrete | Budgeted | Nested | Energy | RandomRanks | UniformRanks,
    Field(discriminator="kind"),
    NameAsKind,
]

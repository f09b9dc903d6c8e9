"""Penalties on the heads' maps W_M that a config can add to the loss.

A new penalty is one class here, added to `Penalty`, and one function in `wmresearch/training/penalties.py`'s table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from wmresearch.config.base import Check, Config, NameAsKind, Traced


class ConstantStrength(Config):
    """The strength from the first step to the last."""

    kind: Literal["constant"] = "constant"


class WarmUpStrength(Config):
    """From 0 linearly to the strength over so many steps, then constant."""

    kind: Literal["warmup"] = "warmup"
    steps: Annotated[int, Traced()] = Field(ge=1)


class CosineStrength(Config):
    """From the strength by half a cosine down to `final` of it at the last step."""

    kind: Literal["cosine"] = "cosine"
    final: Annotated[float, Traced()] = Field(default=0.0, ge=0)


StrengthSchedule = Annotated[
    ConstantStrength | WarmUpStrength | CosineStrength, Field(discriminator="kind"), NameAsKind
]


class TargetNorm(Config):
    """A norm of the heads' maps, averaged over heads and layers, that the strength is steered to keep."""

    norm: Literal["frobenius", "nuclear"] = "frobenius"
    value: Annotated[float, Traced()] = Field(gt=0)
    """‖M‖_F or ‖M‖_* to keep to. A penalty can only hold a norm down: below the target its strength falls towards 0."""
    gain: Annotated[float, Traced()] = Field(default=0.1, gt=0)
    """How fast ln λ follows ln(‖M‖ / value), each time that the gradient is computed. Short runs need more."""
    initial: float = Field(default=1e-3, gt=0)
    """λ that a run with ‖M‖ = value would start with."""


class PenaltyConfig(Config):
    """What every penalty has. Its gradient is added to the loss's after that was clipped."""

    kind: str
    strength: Annotated[float | None, Traced()] = Field(default=None, ge=0)
    """λ, the factor of the penalty in the loss; null where there is a target."""
    target: TargetNorm | None = None
    """Steers λ instead, so that two penalties are compared at equal ‖M‖."""
    schedule: StrengthSchedule = ConstantStrength()
    every: int = Field(default=1, ge=1)
    """Steps between computations of the gradient, which is used again at the steps between."""

    def checks(self) -> Iterator[Check]:
        if (self.strength is None) == (self.target is None):
            expected = "a number of at least 0, or a target" if self.target is None else "null where there is a target"
            yield Check("strength", expected, ("target",))
        if self.target is not None and not isinstance(self.schedule, ConstantStrength):
            yield Check("schedule", "constant: with a target the strength is steered", ("target",))


class ProximalPenaltyConfig(PenaltyConfig):
    """A penalty that can also be a proximal step: λ · learning rate, after the optimizer's, on A B as stored."""

    step: Literal["gradient", "proximal"] = "gradient"
    """proximal: exact zeros. Not of the maps with the norm's gain, as gradients are, but of the stored factors."""

    def checks(self) -> Iterator[Check]:
        yield from super().checks()
        if self.step == "proximal" and self.target is not None:
            yield Check("target", "null for a proximal step", ("step",))
        if self.step == "proximal" and self.every > 1:
            yield Check("every", "1: a proximal step is taken after each step", ("step",))


class NuclearPenalty(ProximalPenaltyConfig):
    """Σ ‖M_i‖_*, the sum of singular values over heads and layers."""

    kind: Literal["nuclear"] = "nuclear"


class FrobeniusPenalty(PenaltyConfig):
    """½ Σ ‖M_i‖_F²: decay of the product (Khodak et al. 2021, arXiv 2105.01029)."""

    kind: Literal["frobenius"] = "frobenius"


class SpectralPenalty(PenaltyConfig):
    """Σ ‖M_i‖₂, the largest singular values."""

    kind: Literal["spectral"] = "spectral"


class SchattenPenalty(PenaltyConfig):
    """Σ (Σ σ^p)^{1/p}."""

    kind: Literal["schatten"] = "schatten"
    p: float = Field(gt=0)


class L1Penalty(ProximalPenaltyConfig):
    """Σ |M_i,kl|: forms the product in tiles, so it is slow for large models. The proximal step is of ‖A‖_1 + ‖B‖_1."""

    kind: Literal["l1"] = "l1"


class GroupLassoPenalty(ProximalPenaltyConfig):
    """Σ ‖M_i,g‖_F over groups of entries: rows (what a head reads), columns (what it writes) or blocks."""

    kind: Literal["group_lasso"] = "group_lasso"
    groups: Literal["rows", "columns", "blocks"] = "rows"
    block: int | None = Field(default=None, ge=1)
    """Rows and columns of a block; divides `model.d_model`."""

    def checks(self) -> Iterator[Check]:
        yield from super().checks()
        if (self.groups == "blocks") != (self.block is not None):
            expected = "the size of a block" if self.block is None else "null, unless groups is blocks"
            yield Check("block", expected, ("groups",))
        if self.groups == "blocks" and self.step == "proximal":
            yield Check("step", "gradient: blocks of a product of factors have no proximal step", ("groups",))


class HeadOverlapPenalty(PenaltyConfig):
    """Σ_{i<j} cos²(M_i, M_j) over the pairs of heads of each layer. Holds no scale."""

    kind: Literal["head_overlap"] = "head_overlap"


class FactorDecayPenalty(PenaltyConfig):
    """½ Σ (‖A‖_F² + ‖B‖_F²), a shared A counted once. Depends on the gauge."""

    kind: Literal["factor_decay"] = "factor_decay"


class OrthogonalFactorsPenalty(PenaltyConfig):
    """Squared cosines between the columns of each A_i and between the rows of each B_i. Depends on the gauge."""

    kind: Literal["orthogonal_factors"] = "orthogonal_factors"


Penalty = Annotated[
    NuclearPenalty
    | FrobeniusPenalty
    | SpectralPenalty
    | SchattenPenalty
    | L1Penalty
    | GroupLassoPenalty
    | HeadOverlapPenalty
    | FactorDecayPenalty
    | OrthogonalFactorsPenalty,
    Field(discriminator="kind"),
    NameAsKind,
]

"""Where a sparse map may have entries, and how they are found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from wmresearch.config.base import Check, Config, NameAsKind


class Unstructured(Config):
    """Any entries."""

    kind: Literal["unstructured"] = "unstructured"


class Blocks(Config):
    """Square blocks of entries."""

    kind: Literal["block"] = "block"
    size: int = Field(ge=1)
    """Rows and columns of a block; divides those of the matrix."""


class NOfM(Config):
    """n of every m entries in a row along the axis that a product sums over (2:4 is what some GPUs can multiply)."""

    kind: Literal["n:m"] = "n:m"
    n: int = Field(ge=1)
    m: int = Field(ge=1)

    def checks(self) -> Iterator[Check]:
        if self.n > self.m:
            yield Check("n", f"at most m = {self.m}", ("m",))


Pattern = Annotated[Unstructured | Blocks | NOfM, Field(discriminator="kind"), NameAsKind]


class Static(Config):
    """Places drawn at random before the first step."""

    kind: Literal["static"] = "static"


class Regrowing(Config):
    """What methods have that drop the smallest entries now and then, and grow as many elsewhere, from zero.

    At step t a share of `share` · ½ (1 + cos πt/T) is exchanged, T = `until` · steps.
    """

    every: int = Field(default=100, ge=1)
    """Steps between exchanges."""
    share: float = Field(default=0.3, gt=0, lt=1)
    until: float = Field(default=0.75, gt=0, le=1)
    """Of the run's steps; from there on places stay."""


class Set(Regrowing):
    """Grown at random places (Mocanu et al. 2018, arXiv 1707.04780)."""

    kind: Literal["set"] = "set"


class RigL(Regrowing):
    """Grown where the loss's gradient is largest (Evci et al. 2020, arXiv 1911.11134)."""

    kind: Literal["rigl"] = "rigl"


class StraightThrough(Config):
    """Dense weights are trained; the largest are used, and the gradient passes as if all were.

    Bengio et al. 2013 (arXiv 1308.3432).
    """

    kind: Literal["ste"] = "ste"
    every: int = Field(default=1, ge=1)
    """Steps between choices of the largest."""


class Magnitude(Config):
    """Dense at first; the smallest are cut for good, until at `end` only the density is left.

    Share cut: s (1 − (1 − u)³), u from 0 at `begin` to 1 at `end`. Zhu & Gupta 2017 (arXiv 1710.01878).
    """

    kind: Literal["magnitude"] = "magnitude"
    begin: float = Field(default=0.1, ge=0, lt=1)
    """Of the run's steps."""
    end: float = Field(default=0.6, gt=0, le=1)
    """Of the run's steps."""
    every: int = Field(default=20, ge=1)
    """Steps between cuts."""

    def checks(self) -> Iterator[Check]:
        if self.begin >= self.end:
            yield Check("begin", f"less than end = {self.end}", ("end",))


class Proximal(Config):
    """Soft threshold (of entries, or of blocks as wholes) after each step; at `end` only the largest are left."""

    kind: Literal["proximal"] = "proximal"
    strength: float = Field(ge=0)
    """λ: the threshold is λ · learning rate."""
    end: float = Field(default=0.6, gt=0, le=1)
    """Of the run's steps."""


Method = Annotated[
    Static | Set | RigL | StraightThrough | Magnitude | Proximal, Field(discriminator="kind"), NameAsKind
]

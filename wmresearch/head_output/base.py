"""What every head output is: the part of an attention layer after the softmax.

A layer computes y = Σ_i P_i X M_i. The attention layer owns the P_i; a head output owns the maps M_i and decides in
which order to apply P_i and the parts of M_i (`order`, SCIENCE: attend-then-write, modify-then-attend, mix-first).

Shape suffixes here and in the model: b batch, t position (s the attended one), n = b·t, d model width, h query heads,
k key/value heads, g query heads a key/value head, r rank of a head's value path, e width of queries and keys, m width
of the MLP, v vocabulary.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from flax import nnx
from jaxtyping import Array, Float

from wmresearch.algebra import FactoredMatrix
from wmresearch.config.model import ModelConfig

Mix: TypeAlias = Callable[[Float[Array, "b t k r"]], Float[Array, "b t h r"]]
"""Applies the attention: what the heads hold at each position → what they gather there. Any number of value heads that
divides the query heads will do; each is used by as many query heads in a row."""


class HeadOutput(nnx.Module, abc.ABC):
    """What the heads read from x and what they write to the residual stream, given the attention."""

    kind: ClassVar[str]
    """As in the config."""
    symbols: ClassVar[dict[str, str]]
    """Parameter → its symbol in the formula."""

    @abc.abstractmethod
    def __init__(self, config: Any, model: ModelConfig) -> None:
        """Declares the parameters; `config` is the class of `wmresearch.config.head_output` with this `kind`."""

    @abc.abstractmethod
    def __call__(self, x_btd: Float[Array, "b t d"], mix: Mix) -> Float[Array, "b t d"]:
        """Y = Σ_i P_i x M_i (and biases), P_i applied through `mix`."""

    @abc.abstractmethod
    def factors(self) -> FactoredMatrix:
        """The maps M_i = A_i B_i of all heads: A `[h, d, r]`, B `[h, r, d]`."""

    @abc.abstractmethod
    def flops_per_token(self, attended: float) -> float:
        """Floating-point operations of a forward pass in matrix products, for one token that attends to so many."""

    @abc.abstractmethod
    def cache_per_token(self) -> int:
        """Numbers that generation keeps of each past token, for the value path of one layer."""

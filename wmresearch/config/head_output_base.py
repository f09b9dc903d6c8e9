"""What every head output that a config can choose has in common, and the rules that several of them share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from wmresearch.config.base import Check, Config

if TYPE_CHECKING:
    from wmresearch.config.model import ModelConfig

Order = Literal["auto", "attend_then_write", "modify_then_attend", "mix_first"]


class HeadOutputConfig(Config):
    """What every head output has."""

    kind: str
    bias: bool | None = None
    """Biases of what heads read and of what they write; null follows `model.bias`."""
    order: Order = "auto"
    """How Σ_i P_i X M_i is evaluated: the same function at other costs; auto is the fastest by the cost model of
    `head_output.orders`, which asks the shapes and not the device."""

    two_factors: ClassVar[bool] = False
    """Whether A and B are stored as such, so that proximal steps can act on them."""

    def checks_in(self, model: ModelConfig) -> Iterator[Check]:
        """The rules between this head output and the model around it that do not hold; paths start at the model."""
        if self.loses_bias(self.order, model):
            depends_on = ("head_output.bias", "bias", "dropout")
            yield Check(
                "head_output.order",
                "an order other than mix_first: under dropout a value bias must be mixed",
                depends_on,
            )

    def loses_bias(self, order: str, model: ModelConfig) -> bool:
        """Whether this order adds the value bias after mixing although attention rows do not sum to one."""
        return order == "mix_first" and model.dropout > 0 and self.has_bias(model)

    def has_bias(self, model: ModelConfig) -> bool:
        return model.bias if self.bias is None else self.bias


def rank_within(rank: int, model: ModelConfig) -> Iterator[Check]:
    if rank > model.d_model:
        expected = f"a rank from 1 to d_model = {model.d_model}"
        yield Check("head_output.rank", expected, ("d_model",), "a d × d map has rank at most d")


def divides(key: str, number: int, model: ModelConfig) -> Iterator[Check]:
    if model.d_model % number:
        yield Check(f"head_output.{key}", f"a divisor of d_model = {model.d_model}", ("d_model",))


def slices(kind: str, model: ModelConfig) -> Iterator[Check]:
    if model.n_heads * model.head_width != model.d_model:
        expected = f"another kind, or n_heads · d_head = d_model: {kind} gives each head a slice of the residual stream"
        yield Check("head_output.kind", expected, ("d_model", "n_heads", "d_head"))

"""The head outputs a config can choose: what the heads read from x after the softmax, and what they write.

A new parameterization is one class here, added to `HeadOutput`, and one file in `wmresearch/head_output/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from wmresearch.config.base import Check, Config, NameAsKind

if TYPE_CHECKING:
    from wmresearch.config.model import ModelConfig

Order = Literal["auto", "attend_then_write", "modify_then_attend", "mix_first"]


class HeadOutputConfig(Config):
    """What every head output has."""

    kind: str
    bias: bool | None = None
    """Biases of what heads read and of what they write; null follows `model.bias`."""
    order: Order = "auto"
    """How Σ_i P_i X M_i is evaluated: the same function at other costs; auto is the cheapest by the cost model."""

    def checks_in(self, model: ModelConfig) -> Iterator[Check]:
        """The rules between this head output and the model around it that do not hold; paths start at the model."""
        if self.order == "mix_first" and model.dropout and self.has_bias(model):
            depends_on = ("head_output.bias", "bias", "dropout")
            yield Check(
                "head_output.order",
                "an order other than mix_first: under dropout a value bias must be mixed",
                depends_on,
            )

    def has_bias(self, model: ModelConfig) -> bool:
        return model.bias if self.bias is None else self.bias


class StandardConfig(HeadOutputConfig):
    """W_M_i = W_V_i W_O_i: values, concatenation of the heads, one output projection. r = `model.d_head`."""

    kind: Literal["standard"] = "standard"


class FactorizedConfig(HeadOutputConfig):
    """W_M_i = A_i B_i with A_i (d × r) and B_i (r × d) per head, summed over heads without a concatenation."""

    kind: Literal["factorized"] = "factorized"
    rank: int = Field(ge=1)
    """r, from 1 to `model.d_model`."""

    def checks_in(self, model: ModelConfig) -> Iterator[Check]:
        yield from super().checks_in(model)
        if self.rank > model.d_model:
            expected = f"a rank from 1 to d_model = {model.d_model}"
            yield Check("head_output.rank", expected, ("d_model",), "a d × d map has rank at most d")


class DenseConfig(HeadOutputConfig):
    """W_M_i a free d × d matrix."""

    kind: Literal["dense"] = "dense"


HeadOutput = Annotated[StandardConfig | FactorizedConfig | DenseConfig, Field(discriminator="kind"), NameAsKind]

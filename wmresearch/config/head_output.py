"""The head outputs a config can choose: what the heads read from x after the softmax, and what they write.

A new parameterization is one class here, added to `HeadOutput`, and one file in `wmresearch/head_output/`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from wmresearch.config.base import Config, NameAsKind


class StandardConfig(Config):
    """W_M_i = W_V_i W_O_i: values, concatenation of the heads, one output projection. r = `model.d_head`."""

    kind: Literal["standard"] = "standard"
    bias: bool | None = None
    """Biases of the values and of the output; null follows `model.bias`."""


class FactorizedConfig(Config):
    """W_M_i = A_i B_i with A_i (d × r) and B_i (r × d) per head, summed over heads without a concatenation."""

    kind: Literal["factorized"] = "factorized"
    rank: int = Field(ge=1)
    """r, from 1 to `model.d_model`."""
    bias: bool | None = None
    """Biases of the values and of the output; null follows `model.bias`."""


HeadOutput = Annotated[StandardConfig | FactorizedConfig, Field(discriminator="kind"), NameAsKind]

"""The language model: a decoder-only transformer, GPT-2 style or Llama style or between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from wmresearch.config.base import Check, Config, NameAsKind
from wmresearch.config.head_output import HeadOutput, StandardConfig

Dtype = Literal["float32", "bfloat16", "float16", "float64"]


class LearnedPositions(Config):
    """A trained vector for each position, added to the embeddings (GPT-2)."""

    kind: Literal["learned"] = "learned"


class RotaryPositions(Config):
    """Rotary position embedding of queries and keys (Su et al. 2021, arXiv 2104.09864)."""

    kind: Literal["rope"] = "rope"
    theta: float = Field(default=10_000.0, gt=0)
    """The base of the geometric series of wavelengths."""


class NoPositions(Config):
    """No position signal but the causal mask."""

    kind: Literal["none"] = "none"


Positions = Annotated[LearnedPositions | RotaryPositions | NoPositions, Field(discriminator="kind"), NameAsKind]


class ModelConfig(Config):
    """A decoder-only transformer. The vocabulary's size comes from the tokenizer."""

    d_model: int = Field(ge=1)
    """Width of the residual stream, d."""
    n_layers: int = Field(ge=1)
    n_heads: int = Field(ge=1)
    """Query heads, H."""
    n_kv_heads: int | None = Field(default=None, ge=1)
    """Key/value heads, K; null means one for each query head."""
    d_head: int | None = Field(default=None, ge=1)
    """Width of queries and keys, and of the standard head output's values; null means d_model / n_heads."""
    d_mlp: int | None = Field(default=None, ge=1)
    """Hidden width of the MLP; null means 4 d_model, and 8/3 d_model rounded up to a multiple of 32 for swiglu."""
    context: int = Field(ge=1)
    """Tokens a sequence, T."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    positions: Positions = LearnedPositions()
    mlp: Literal["gelu", "gelu_tanh", "relu", "swiglu"] = "gelu"
    """Activation of the MLP; `gelu` is the exact one, `swiglu` has a gate."""
    bias: bool = True
    """Biases in the linear maps and in LayerNorm."""
    tie_embeddings: bool = True
    """The output logits use the token embedding."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Rate on the embeddings, on the attention weights and on each residual branch."""
    init_std: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial weights; maps that write to the residual stream have it over √(2 n_layers)."""
    dtype: Dtype = "float32"
    """Type of the computation."""
    param_dtype: Dtype = "float32"
    """Type of the stored parameters."""
    head_output: HeadOutput = StandardConfig()

    @property
    def kv_heads(self) -> int:
        return self.n_kv_heads or self.n_heads

    @property
    def head_width(self) -> int:
        return self.d_head or self.d_model // self.n_heads

    @property
    def mlp_width(self) -> int:
        if self.d_mlp is not None:
            return self.d_mlp
        return -(-8 * self.d_model // (3 * 32)) * 32 if self.mlp == "swiglu" else 4 * self.d_model

    @property
    def residual_std(self) -> float:
        """Initial standard deviation of the maps that write to the residual stream (two in each layer)."""
        return float(self.init_std / (2 * self.n_layers) ** 0.5)

    @property
    def product_std(self) -> float:
        """Initial standard deviation of the entries of the standard head output's W_V_i W_O_i: σ_V σ_O √d_head."""
        return float(self.init_std * self.residual_std * self.head_width**0.5)

    def checks(self) -> Iterator[Check]:
        d, h = self.d_model, self.n_heads
        if self.d_head is None and d % h:
            yield Check(
                "d_model",
                f"a multiple of n_heads = {h} (or give d_head)",
                ("n_heads", "d_head"),
                f"n_heads that divide {d}: {listed_divisors(d, near=h)}; "
                f"nearest d_model: {d - d % h or h}, {d + h - d % h}",
            )
        elif isinstance(self.positions, RotaryPositions) and self.head_width % 2:
            yield Check(
                "positions.kind",
                f"another kind, or an even d_head for rope: it is {self.head_width}",
                ("d_model", "n_heads", "d_head", "positions"),
            )
        if h % self.kv_heads:
            yield Check(
                "n_kv_heads", f"a divisor of n_heads = {h}: {listed_divisors(h, near=self.kv_heads)}", ("n_heads",)
            )
        yield from self.head_output.checks_in(self)


def listed_divisors(number: int, near: int) -> str:
    """The divisors nearest to a number, up to eight; of a huge number only small ones are sought."""
    found = [n for n in range(1, min(number, 100_000) + 1) if number % n == 0]
    return ", ".join(map(str, sorted(sorted(found, key=lambda n: abs(n - near))[:8])))

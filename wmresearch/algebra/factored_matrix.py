"""A matrix kept as the product of two thin ones."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jaxtyping import Array, Float


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FactoredMatrix:
    """M = A B, A `[..., m, r]` and B `[..., r, n]`, batched over the leading axes."""

    a: Float[Array, "... m r"]
    b: Float[Array, "... r n"]

    @property
    def rank(self) -> int:
        """r, the largest rank that M can have."""
        return self.a.shape[-1]

    def dense(self) -> Float[Array, "... m n"]:
        """M itself, `[..., m, n]`."""
        return self.a @ self.b

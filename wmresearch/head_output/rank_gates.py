"""What each direction of a head is multiplied by, M = A diag(g) B, while its method finds out which are needed."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from wmresearch.config.rank_method import Budgeted, HardConcrete, Nested, RankMethod
from wmresearch.head_output.rank_layout import RankLayout
from wmresearch.head_output.weights import Along, Constant, Params, along_key_heads, buffer, weight

_DIRECTIONS = Along(0, "directions")

TEMPERATURE = 0.33
STRETCH = (-0.1, 1.1)
"""γ, ζ: the interval that a relaxed gate is stretched to before it is clipped to [0, 1]."""


class Gates(nnx.Module, abc.ABC):
    """The gates of a layer's directions, in their row: `[w]`."""

    @abc.abstractmethod
    def __call__(self) -> Float[Array, " w"]:
        """The gates without chance, as they are evaluated."""

    @abc.abstractmethod
    def scores(self, origin_w: Int[Array, " w"]) -> Float[Array, " w"]:
        """What directions are kept by, the largest first; `origin` are their numbers at first."""

    def spread(self, layout: RankLayout, shards: int) -> None:
        """From now on the row is so many parts of this layout."""


class HardConcreteGates(Gates):
    """g = clip(σ(log α) (ζ − γ) + γ, 0, 1) of a direction, times that of its head where heads have gates.

    In training σ((log α + logit u) / β) takes the place of σ(log α), u uniform (`with_chance`).
    """

    def __init__(self, method: HardConcrete, layout: RankLayout, dtype: str) -> None:
        self.speed = method.speed
        start = Constant(method.start / method.speed)
        self.slow = weight((layout.width,), start, dtype, decay=False, along=_DIRECTIONS)
        """log α / speed, so that an optimizer whose steps have one size changes log α faster"""
        heads = weight((len(layout.heads),), start, dtype, decay=False, along=along_key_heads(0))
        self.slow_of_head = heads if method.heads else None
        self.spread(layout, 1)

    def spread(self, layout: RankLayout, shards: int) -> None:
        places = np.repeat(np.arange(len(layout.heads)), layout.widths)
        of_shards = np.arange(shards)[:, None] * len(layout.heads) + places
        self._head_index = tuple(of_shards.ravel().tolist())

    def __call__(self) -> Float[Array, " w"]:
        low, high = STRETCH
        return self._of_both(lambda log_alpha: jnp.clip(jax.nn.sigmoid(log_alpha) * (high - low) + low, 0, 1))

    def scores(self, origin_w: Int[Array, " w"]) -> Float[Array, " w"]:
        """P(g > 0) = σ(log α − β ln(−γ/ζ)), that of its head as a factor."""
        del origin_w
        low, high = STRETCH
        return self._of_both(lambda log_alpha: jax.nn.sigmoid(log_alpha - TEMPERATURE * math.log(-low / high)))

    def _of_both(self, function: Callable[[Array], Array]) -> Float[Array, " w"]:
        own = function(self.speed * self.slow[...])
        if self.slow_of_head is None:
            return own
        return own * function(self.speed * self.slow_of_head[...])[np.array(self._head_index, int)]


def with_chance(gates: Params, speed: float, uniform: Params) -> Params:
    """The leaves of `HardConcreteGates` for which it gives the gates drawn with the given u, of the same shapes."""

    def drawn(slow: Array, u: Array) -> Array:
        logit = jnp.log(u) - jnp.log1p(-u)
        return (slow + logit.astype(slow.dtype) / speed) / TEMPERATURE

    return {name: drawn(leaf, uniform[name]) for name, leaf in gates.items()}


class ScaleGates(Gates):
    """g = s, trained; importance is smoothed in training (`training.rank_training`)."""

    def __init__(self, method: Budgeted, layout: RankLayout, dtype: str) -> None:
        del method
        self.scale = weight((layout.width,), Constant(1.0), dtype, decay=False, along=_DIRECTIONS)
        self.sensitivity = buffer((layout.width,), Constant(0.0), dtype, _DIRECTIONS)
        """Ī, the moving average of a direction's |p ∂loss/∂p|"""
        self.uncertainty = buffer((layout.width,), Constant(0.0), dtype, _DIRECTIONS)
        """Ū, that of |I − Ī|"""

    def __call__(self) -> Float[Array, " w"]:
        return self.scale[...]

    def scores(self, origin_w: Int[Array, " w"]) -> Float[Array, " w"]:
        """Ī Ū."""
        del origin_w
        return self.sensitivity[...] * self.uncertainty[...]


class PrefixGates(Gates):
    """g = 1; in training 0 beyond the first m directions of every head, m drawn at each step."""

    def __init__(self, method: Nested, layout: RankLayout, dtype: str) -> None:
        del method
        self.within = buffer((layout.width,), Constant(1.0), dtype, _DIRECTIONS)

    def __call__(self) -> Float[Array, " w"]:
        return self.within[...]

    def scores(self, origin_w: Int[Array, " w"]) -> Float[Array, " w"]:
        """The first of every head, then the second of every head, and so on."""
        return -origin_w.astype(float)


def make_gates(method: RankMethod, layout: RankLayout, dtype: str) -> Gates | None:
    """The gates of a method; None where it has none, or where there are no directions."""
    if not layout.width:
        return None
    if isinstance(method, HardConcrete):
        return HardConcreteGates(method, layout, dtype)
    if isinstance(method, Budgeted):
        return ScaleGates(method, layout, dtype)
    return PrefixGates(method, layout, dtype) if isinstance(method, Nested) else None

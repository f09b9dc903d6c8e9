"""How the factors A `[d, k, r]` and B `[h, r, d]` can start, besides Gaussian: the two have to agree on something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from wmresearch.algebra import FactoredMatrix, decompositions
from wmresearch.head_output.weights import Normal

Side = Literal["a", "b"]


@dataclass(frozen=True)
class PaddedNormal:
    """Gaussian, with a standard deviation and a rank for each key/value head; zero beyond its rank."""

    side: Side
    stds: tuple[float, ...]
    ranks: tuple[int, ...]

    def __call__(self, own: PRNGKeyArray, common: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Array:
        del common
        r = shape[2] if self.side == "a" else shape[1]
        held_kr = jnp.arange(r)[None] < jnp.asarray(self.ranks)[:, None]
        scale_kr = jnp.asarray(self.stds, dtype)[:, None] * held_kr.astype(dtype)
        drawn = jax.random.normal(own, shape, dtype)
        if self.side == "a":
            return drawn * scale_kr[None]
        return drawn * jnp.repeat(scale_kr, shape[0] // len(self.ranks), axis=0)[..., None]


@dataclass(frozen=True)
class SpectralFactor:
    """U √(c S), or √(c S) Vᵀ, of a Gaussian map `[d, g·d]` for each key/value head, cut to its rank.

    c = ‖M‖_F / ‖M cut‖_F, so that the maps start as large as those of every other kind. Spectral initialization: Khodak
    et al. 2021 (arXiv 2105.01029), who do not scale back.
    """

    side: Side
    std: float
    ranks: tuple[int, ...]
    write: int
    """g·d: what the g query heads that share A write."""

    def __call__(self, own: PRNGKeyArray, common: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Array:
        del own
        d, k = (shape[0], shape[1]) if self.side == "a" else (shape[2], len(self.ranks))
        r = max(self.ranks)
        wide = jnp.promote_types(dtype, jnp.float32)  # decompositions take no less
        map_kdn = self.std * jax.random.normal(common, (k, d, self.write), wide)
        identity = jnp.broadcast_to(jnp.eye(d, dtype=wide), (k, d, d))
        u, s, vt = FactoredMatrix(identity, map_kdn).svd()
        cut = jnp.where(jnp.arange(d)[None] < jnp.asarray(self.ranks)[:, None], s, 0)
        largest = jnp.maximum(jnp.linalg.norm(cut, axis=-1, keepdims=True), jnp.finfo(wide).tiny)
        root = jnp.sqrt(cut * jnp.linalg.norm(s, axis=-1, keepdims=True) / largest)
        if self.side == "a":
            return jnp.moveaxis((u * root[:, None, :])[..., :r], 1, 0).astype(dtype)
        b_krgd = (root[..., None] * vt)[:, :r].reshape(k, r, self.write // d, d)
        return jnp.moveaxis(b_krgd, 2, 1).reshape(shape).astype(dtype)


@dataclass(frozen=True)
class InGauge:
    """A G, or G⁻¹ B, of Gaussian factors: a G = Q diag(s) Qᵀ of condition κ for each key/value head, Q orthogonal."""

    side: Side
    inner: Normal
    condition: float
    value_heads: int

    def __call__(self, own: PRNGKeyArray, common: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Array:
        wide = jnp.promote_types(dtype, jnp.float32)  # decompositions take no less
        factor = self.inner(own, common, shape, dtype).astype(wide)
        r = shape[2] if self.side == "a" else shape[1]
        q_krr, s_r = self._gauge(common, r, wide)
        if self.side == "a":
            return jnp.einsum("dkr,krs,s,kts->dkt", factor, q_krr, s_r, q_krr).astype(dtype)
        grouped = factor.reshape(self.value_heads, -1, r, shape[2])
        return jnp.einsum("krs,s,kts,kgtd->kgrd", q_krr, 1 / s_r, q_krr, grouped).reshape(shape).astype(dtype)

    def _gauge(self, key: PRNGKeyArray, r: int, dtype: Any) -> tuple[Float[Array, "k r r"], Float[Array, " r"]]:
        q, _ = decompositions.qr(jax.random.normal(key, (self.value_heads, r, r), dtype))
        exponents = jnp.linspace(-0.5, 0.5, r, dtype=dtype) if r > 1 else jnp.zeros(1, dtype)
        return q, jnp.asarray(self.condition, dtype) ** exponents

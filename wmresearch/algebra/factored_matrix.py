"""A matrix kept as the product of two thin ones."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.tree_util import GetAttrKey
from jaxtyping import Array, Complex, Float

from wmresearch.algebra import norms, spectrum
from wmresearch.algebra.orthogonalization import householder
from wmresearch.algebra.products import matmul, safe_sqrt, transpose


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, eq=False)
class FactoredMatrix:
    """M = A B, A `[..., m, r]` and B `[..., r, n]`, r ≤ min(m, n), batched over the leading axes, float32 or float64.

    A pytree, for jit, vmap and grad. Nothing but `dense()` forms an m × n array. Gradients (first order, of all norms)
    are finite everywhere: at zero, repeated and tiny singular values they are one subgradient. A change of gauge
    (A G, G⁻¹ B) changes nothing but what names a factor. Raises ValueError for shapes that do not fit.
    """

    a: Float[Array, "*batch m r"]
    b: Float[Array, "*batch r n"]

    __array_ufunc__ = None  # so that numpy leaves x @ M to __rmatmul__

    def __post_init__(self) -> None:
        if hasattr(self.a, "shape") and hasattr(self.b, "shape"):  # an axis or a spec may stand in a leaf's place
            _check_shapes(tuple(self.a.shape), tuple(self.b.shape))

    def tree_flatten_with_keys(self) -> tuple[tuple, None]:
        return ((GetAttrKey("a"), self.a), (GetAttrKey("b"), self.b)), None

    @classmethod
    def tree_unflatten(cls, _: None, leaves: tuple) -> FactoredMatrix:
        """Without the constructor's check: jax puts placeholders and arrays of other shapes in the leaves' place."""
        matrix = object.__new__(cls)
        for name, leaf in zip(("a", "b"), leaves, strict=True):
            object.__setattr__(matrix, name, leaf)
        return matrix

    @property
    def rank(self) -> int:
        """r, the largest rank that M can have."""
        return self.a.shape[-1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of M: `[..., m, n]`."""
        return (*self.a.shape[:-1], self.b.shape[-1])

    @property
    def T(self) -> FactoredMatrix:  # noqa: N802, numpy's name
        """Mᵀ = Bᵀ Aᵀ."""
        return FactoredMatrix(transpose(self.b), transpose(self.a))

    def dense(self) -> Float[Array, "*batch m n"]:
        """M itself, `[..., m, n]`."""
        return matmul(self.a, self.b)

    def __matmul__(self, other: Array | FactoredMatrix) -> Array | FactoredMatrix:
        """M x for a vector `[n]`, M X for matrices `[..., n, k]`, M N for a factored N (of the lower rank)."""
        if not isinstance(other, FactoredMatrix):
            if jnp.ndim(other) == 1:
                return matmul(self.a, matmul(self.b, other[:, None]))[..., 0]
            return matmul(self.a, matmul(self.b, other))
        middle = matmul(self.b, other.a)
        if self.rank <= other.rank:
            return FactoredMatrix(self.a, matmul(middle, other.b))
        return FactoredMatrix(matmul(self.a, middle), other.b)

    def __rmatmul__(self, other: Array) -> Array:
        """Of a vector or matrix on the left: x M for a vector `[m]`, X M for matrices `[..., k, m]`."""
        if jnp.ndim(other) == 1:
            return matmul(matmul(other[None, :], self.a), self.b)[..., 0, :]
        return matmul(matmul(other, self.a), self.b)

    def svd(self) -> tuple[Float[Array, "*batch m r"], Float[Array, "*batch r"], Float[Array, "*batch r n"]]:
        """M = U S Vᵀ: U, σ falling, Vᵀ, both orthonormal. Not for gradients: `singular_values` has a rule for them."""
        return spectrum.thin_svd(self.a, self.b, householder)

    def singular_values(self) -> Float[Array, "*batch r"]:
        """σ_1 ≥ … ≥ σ_r."""
        return spectrum.singular_values(self.a, self.b)

    def eigenvalues(self) -> Complex[Array, "*batch r"]:
        """The r eigenvalues of a square M that can differ from zero. Raises ValueError if M is not square."""
        if self.shape[-1] != self.shape[-2]:
            raise ValueError(f"eigenvalues: M is {self.shape[-2]} × {self.shape[-1]}, expected a square matrix")
        return spectrum.eigenvalues(self.a, self.b)

    def inner(self, other: FactoredMatrix) -> Float[Array, "*batch"]:
        """⟨M, N⟩_F = Σ M ∘ N."""
        return norms.inner(self.a, self.b, other.a, other.b)

    def frobenius_norm(self) -> Float[Array, "*batch"]:
        """‖M‖_F = √Σ σ²."""
        return safe_sqrt(norms.squared_frobenius(self.a, self.b))

    def nuclear_norm(self) -> Float[Array, "*batch"]:
        """‖M‖_* = Σ σ."""
        return spectrum.nuclear_norm(self.a, self.b)

    def spectral_norm(self) -> Float[Array, "*batch"]:
        """‖M‖₂ = σ_1."""
        return self.singular_values()[..., 0]

    def schatten_norm(self, p: float) -> Float[Array, "*batch"]:
        """(Σ σ^p)^{1/p}, p > 0."""
        return spectrum.schatten_norm(self.singular_values(), p)

    def l1_norm(self) -> Float[Array, "*batch"]:
        """Σ |M_kl|, streamed in tiles of rows."""
        return norms.l1_norm(self.a, self.b)

    def row_norms(self) -> Float[Array, "*batch m"]:
        """‖M_k‖ of each row."""
        return norms.row_norms(self.a, self.b)

    def column_norms(self) -> Float[Array, "*batch n"]:
        """‖M_k‖ of each column."""
        return norms.row_norms(transpose(self.b), transpose(self.a))

    def block_norms(self, rows: int, columns: int) -> Float[Array, "*batch i j"]:
        """‖M_IJ‖_F of each block of `rows` × `columns`, which have to fill M."""
        return norms.block_norms(self.a, self.b, rows, columns)

    def effective_rank(self) -> Float[Array, "*batch"]:
        """exp(−Σ p ln p), p = σ / Σσ. A diagnostic, ill posed as a loss."""
        return spectrum.effective_rank(self.singular_values())

    def stable_rank(self) -> Float[Array, "*batch"]:
        """‖M‖_F² / ‖M‖₂². A diagnostic, ill posed as a loss."""
        return spectrum.stable_rank(self.singular_values())

    def balance(self) -> FactoredMatrix:
        """U √S, √S Vᵀ: the factors of M with AᵀA = BBᵀ, whose ½ (‖A‖_F² + ‖B‖_F²) is the least possible, ‖M‖_*."""
        return self.truncate(self.rank)

    def truncate(self, rank: int, covariance: Float[Array, "*batch m m"] | None = None) -> FactoredMatrix:
        """N = argmin ‖M − N‖_F over rank(N) ≤ `rank`, balanced: the leading singular directions (Eckart and Young).

        With the covariance E[xᵀx] = RᵀR of the inputs of x M (x a row), the argmin of E‖x M − x N‖² = ‖R (M − N)‖_F²
        instead: N = M V_k V_kᵀ with the right singular vectors of R M. The covariance may be singular.
        """
        if not 1 <= rank <= self.rank:
            raise ValueError(f"truncate: rank is {rank}, expected 1 to {self.rank}, the rank of the factors")
        if covariance is not None:
            values, vectors = jnp.linalg.eigh(covariance)
            root = jnp.sqrt(jnp.maximum(values, 0))[..., :, None] * transpose(vectors)
            vt = spectrum.thin_svd(matmul(root, self.a), self.b, householder)[2][..., :rank, :]
            return FactoredMatrix(matmul(self.a, matmul(self.b, transpose(vt))), vt).balance()
        u, s, vt = self.svd()
        root_s = jnp.sqrt(s[..., :rank])
        return FactoredMatrix(u[..., :rank] * root_s[..., None, :], root_s[..., None] * vt[..., :rank, :])

    def change_gauge(self, g: Float[Array, "*batch r r"]) -> FactoredMatrix:
        """A G, G⁻¹ B: other factors of the same M, for an invertible G."""
        return FactoredMatrix(matmul(self.a, g), jnp.linalg.solve(g, self.b))


def _check_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    found = f"FactoredMatrix: a is {list(a)} and b is {list(b)}"
    if len(a) < 2 or len(b) < 2:
        raise ValueError(f"{found}, expected matrices: a [..., m, r], b [..., r, n]")
    if a[-1] != b[-2]:
        raise ValueError(f"{found}: a has {a[-1]} columns and b has {b[-2]} rows, expected the same rank r")
    if a[:-2] != b[:-2]:
        raise ValueError(f"{found}: the leading axes {list(a[:-2])} and {list(b[:-2])} differ, expected the same")
    if a[-1] > min(a[-2], b[-1]):
        raise ValueError(
            f"{found}: rank {a[-1]} is more than min(m, n) = {min(a[-2], b[-1])}, "
            "which no matrix of this shape can have; lower the rank or keep the matrix dense"
        )

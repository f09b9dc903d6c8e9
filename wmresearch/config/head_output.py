"""The head outputs a config can choose: what the heads read from x after the softmax, and what they write.

A new parameterization is one class here, added to `HeadOutput`, and one file in `wmresearch/head_output/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from wmresearch.config.base import AllowList, Check, NameAsKind, Operational, Words
from wmresearch.config.dynamic_rank import DynamicRankConfig
from wmresearch.config.factor_start import FactorStart, GaugeStart, MatchedStart
from wmresearch.config.head_output_base import HeadOutputConfig as HeadOutputConfig  # where users import it from
from wmresearch.config.head_output_base import divides, rank_within, slices
from wmresearch.config.setting import Setting
from wmresearch.config.sparsity import Blocks, Method, NOfM, Pattern, Static, Unstructured

if TYPE_CHECKING:
    from wmresearch.config.model import ModelConfig


class StandardConfig(HeadOutputConfig):
    """W_M_i = W_V_i W_O_i: values, concatenation of the heads, one output projection. r = `model.d_head`."""

    kind: Literal["standard"] = "standard"
    two_factors: ClassVar[bool] = True


class FactorizedConfig(HeadOutputConfig):
    """W_M_i = A_i B_i with A_i (d × r) and B_i (r × d) per head, summed over heads without a concatenation."""

    kind: Literal["factorized"] = "factorized"
    two_factors: ClassVar[bool] = True
    rank: int | None = Field(default=None, ge=1)
    """r, from 1 to `model.d_model`; null where there are `ranks`."""
    ranks: Annotated[tuple[Annotated[tuple[Annotated[int, Field(ge=0)], ...], AllowList], ...], AllowList] | None = None
    """For each layer a list with a rank for each key/value head. Heads are padded to their layer's largest."""
    init: FactorStart = MatchedStart()
    rebalance_every: int | None = Field(default=None, ge=1)
    """Steps between changes to the balanced factors of the same maps; null means never."""

    def checks(self) -> Iterator[Check]:
        if (self.rank is None) == (self.ranks is None):
            yield Check("rank", "a rank, or `ranks` for each layer and head (not both)", ("ranks",))
        if self.ranks is not None and isinstance(self.init, GaugeStart):
            yield Check("init", "another start, or one `rank` for all heads", ("ranks",))

    def checks_in(self, model: ModelConfig) -> Iterator[Check]:
        yield from super().checks_in(model)
        if self.rank is not None:
            yield from rank_within(self.rank, model)
        ranks, around = self.ranks or (), ("d_model", "n_layers", "n_heads", "n_kv_heads")
        if self.ranks is not None and len(ranks) != model.n_layers:
            yield Check("head_output.ranks", f"a list for each of n_layers = {model.n_layers} layers", around)
        for layer, row in enumerate(ranks):
            if len(row) != model.kv_heads or not 1 <= max(row, default=0) <= model.d_model:
                expected = (
                    f"a rank from 0 to d_model = {model.d_model} for each of {model.kv_heads} key/value heads, "
                    "one of them above 0"
                )
                yield Check(f"head_output.ranks.{layer}", expected, around)

    def layer_ranks(self, layer: int, model: ModelConfig) -> tuple[int, ...]:
        """The rank of each key/value head of a layer."""
        if self.ranks is not None:
            return self.ranks[layer]
        assert self.rank is not None
        return (self.rank,) * model.kv_heads


class DenseConfig(HeadOutputConfig):
    """W_M_i a free d × d matrix."""

    kind: Literal["dense"] = "dense"


class SharedBasisConfig(HeadOutputConfig):
    """W_M_i = U C_i V: bases U (d × u) and V (v × d) that heads share, and a small core C_i (u × v) per head."""

    kind: Literal["shared_basis"] = "shared_basis"
    rank: int = Field(ge=1)
    """u and v, from 1 to `model.d_model`."""
    share: Literal["layer", "model"] = "layer"
    """Whether the bases are shared by the heads of a layer or by those of all layers."""

    def checks_in(self, model: ModelConfig) -> Iterator[Check]:
        yield from super().checks_in(model)
        yield from rank_within(self.rank, model)


class LowRankDiagonalConfig(HeadOutputConfig):
    """W_M_i = A_i B_i + diag(c_i)."""

    kind: Literal["low_rank_diagonal"] = "low_rank_diagonal"
    rank: int = Field(ge=1)
    """r of A_i B_i, from 1 to `model.d_model`."""

    def checks_in(self, model: ModelConfig) -> Iterator[Check]:
        yield from super().checks_in(model)
        yield from rank_within(self.rank, model)


class BlockDiagonalConfig(HeadOutputConfig):
    """W_M_i block-diagonal, in equal blocks."""

    kind: Literal["block_diagonal"] = "block_diagonal"
    blocks: int = Field(ge=1)
    """How many; divides `model.d_model`."""

    def checks_in(self, model: ModelConfig) -> Iterator[Check]:
        yield from super().checks_in(model)
        yield from divides("blocks", self.blocks, model)


class KroneckerConfig(HeadOutputConfig):
    """W_M_i = Σ_s P_is ⊗ Q_is with P (p × p) and Q (d/p × d/p)."""

    kind: Literal["kronecker"] = "kronecker"
    outer: int = Field(ge=1)
    """p, the size of the outer factor; divides `model.d_model`."""
    terms: int = Field(default=1, ge=1)

    def checks_in(self, model: ModelConfig) -> Iterator[Check]:
        yield from super().checks_in(model)
        yield from divides("outer", self.outer, model)


class MonarchConfig(HeadOutputConfig):
    """W_M_i a product of two block-diagonal matrices with a permutation between (Dao et al. 2022, arXiv 2204.00595)."""

    kind: Literal["monarch"] = "monarch"
    blocks: int = Field(ge=1)
    """Blocks of the first one; divides `model.d_model`, and √d_model is the cheapest."""

    def checks_in(self, model: ModelConfig) -> Iterator[Check]:
        yield from super().checks_in(model)
        yield from divides("blocks", self.blocks, model)


class SparseConfig(HeadOutputConfig):
    """W_M_i, or the factors of A_i B_i, with few entries that are not zero.

    Blocks of the product whose places are static or exchanged at random (`set`) are stored as blocks, and nothing else
    is computed. Everything else is a dense array under a mask, which saves no computation.
    """

    kind: Literal["sparse"] = "sparse"
    of: Literal["product", "factors"] = "product"
    rank: int | None = Field(default=None, ge=1)
    """r of the factors; null for the product."""
    pattern: Pattern = Unstructured()
    density: float | None = Field(default=None, gt=0, le=1)
    """Share of entries that are kept; null for n:m, where it is n / m."""
    allocation: Literal["layer", "global"] = "layer"
    """Whether each matrix of each layer keeps that share, or all of them together."""
    method: Method = Static()

    def checks(self) -> Iterator[Check]:
        if (self.rank is None) == (self.of == "factors"):
            yield Check("rank", "a rank" if self.rank is None else "null, unless `of` is factors", ("of",))
        counted = isinstance(self.pattern, NOfM)
        if (self.density is None) != counted:
            expected = "null: n:m has density n / m" if counted else "a share above 0 and at most 1"
            yield Check("density", expected, ("pattern",))
        if counted and self.method.kind in ("set", "rigl"):
            yield Check("method", "static, ste, magnitude or proximal for the pattern n:m", ("pattern",))
        if self.allocation == "global" and (counted or self.stores_blocks):
            expected = "layer: n:m and stored blocks are as many in every layer"
            yield Check("allocation", expected, ("pattern", "of", "method"))

    def checks_in(self, model: ModelConfig) -> Iterator[Check]:
        yield from super().checks_in(model)
        if self.rank is not None:
            yield from rank_within(self.rank, model)
        pattern = self.pattern
        size = pattern.size if isinstance(pattern, Blocks) else pattern.m if isinstance(pattern, NOfM) else 0
        sides = [("d_model", model.d_model)] + ([("rank", self.rank)] if self.rank is not None else [])
        for name, side in sides:
            if size and side % size:
                key = "size" if isinstance(self.pattern, Blocks) else "m"
                yield Check(f"head_output.pattern.{key}", f"a divisor of {name} = {side}", ("d_model",))

    @property
    def stores_blocks(self) -> bool:
        """Whether only the blocks are stored and computed."""
        return self.of == "product" and self.pattern.kind == "block" and self.method.kind in ("static", "set")

    @property
    def kept(self) -> float:
        """Share of entries that are kept."""
        if isinstance(self.pattern, NOfM):
            return self.pattern.n / self.pattern.m
        assert self.density is not None
        return self.density


class NoOutputConfig(HeadOutputConfig):
    """No output projection: each head writes its values to its own slice of the residual stream; the MLP mixes."""

    kind: Literal["none"] = "none"

    def checks_in(self, model: ModelConfig) -> Iterator[Check]:
        yield from super().checks_in(model)
        yield from slices(self.kind, model)


class FixedOrthogonalConfig(HeadOutputConfig):
    """W_M_i = W_V_i Q_i, the Q_i rows of an orthogonal matrix that is not trained."""

    kind: Literal["fixed_orthogonal"] = "fixed_orthogonal"

    def checks_in(self, model: ModelConfig) -> Iterator[Check]:
        yield from super().checks_in(model)
        yield from slices(self.kind, model)


class IdentityValueConfig(HeadOutputConfig):
    """W_V = I: head i reads the i-th slice of x as it is, and writes it through W_O_i."""

    kind: Literal["identity_value"] = "identity_value"

    def checks_in(self, model: ModelConfig) -> Iterator[Check]:
        yield from super().checks_in(model)
        yield from slices(self.kind, model)


class CustomConfig(HeadOutputConfig):
    """A kind of the user's own: a Python file with the two classes that a kind in this package has, and its settings.

    A relative path starts at the folder of the file that gives it, or at the current folder on the command line.
    """

    kind: Literal["custom"] = "custom"
    file: Annotated[str, Field(min_length=1), Operational()]
    """Where the Python file lies."""
    sha256: Annotated[str | None, Words("64 hexadecimal digits")] = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """Of the file's content, by which it counts in the run's id: filled in when the config is loaded."""
    settings: dict[str, Setting] = {}
    """Values for the fields of the file's config class, which says which are valid; they count as they are written."""


HeadOutput = Annotated[
    StandardConfig
    | FactorizedConfig
    | DenseConfig
    | SharedBasisConfig
    | LowRankDiagonalConfig
    | BlockDiagonalConfig
    | KroneckerConfig
    | MonarchConfig
    | SparseConfig
    | DynamicRankConfig
    | NoOutputConfig
    | FixedOrthogonalConfig
    | IdentityValueConfig
    | CustomConfig,
    Field(discriminator="kind"),
    NameAsKind,
]

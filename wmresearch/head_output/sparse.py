"""Maps with few entries that are not zero."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from wmresearch.algebra import FactoredMatrix
from wmresearch.config.head_output import HeadOutputConfig, SparseConfig
from wmresearch.config.model import ModelConfig
from wmresearch.config.sparsity import Blocks
from wmresearch.head_output.base import HeadOutput, LowRankOutput, WholeReading, full_rank, low_rank_cost, write_heads
from wmresearch.head_output.orders import PathCost
from wmresearch.head_output.sparse_patterns import RandomMask, RandomPlaces, kept_count, masked
from wmresearch.head_output.turns import in_turns
from wmresearch.head_output.weights import (
    Along,
    Constant,
    MatrixAxes,
    Normal,
    along_heads,
    along_key_heads,
    buffer,
    weight,
)

_DENSE_AT_FIRST = ("ste", "magnitude", "proximal")


class Sparse(HeadOutput):
    """The forms that the config can ask for."""

    kind = "sparse"

    @classmethod
    def form(cls, config: HeadOutputConfig) -> type[HeadOutput]:
        assert isinstance(config, SparseConfig)
        if config.stores_blocks:
            return SparseBlocks
        return SparseMap if config.of == "product" else SparseFactors


class SparseMap(Sparse, WholeReading):
    """M `[h, d, d]` under a mask: computed as a dense map. `map_mask` says which entries are not held at zero.

    Entries start 1/√density times as large as the standard product's, so that ‖M_i‖_F starts equal; with methods that
    start dense, as large.
    """

    masked_dense = True
    symbols = {"map": "M"}

    def __init__(self, config: SparseConfig, model: ModelConfig, layer: int, first: HeadOutput | None) -> None:
        shape = (model.n_heads, model.d_model, model.d_model)
        self.map, self.map_mask = _masked_weight(config, shape, model.product_std, model.param_dtype, along_heads(0))
        super().__init__(config, model, layer, first)

    def _map(self) -> Float[Array, "h d d"]:
        return masked(self.map[...], self.map_mask[...])

    def write(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t d"]:
        return write_heads(z_bthr, self._map())

    def write_each(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t h d"]:
        return jnp.einsum("bthr,hrd->bthd", z_bthr, self._map())

    def path_cost(self) -> PathCost:
        h, d, _ = self.map.shape
        return self.whole_cost(d, h, write=2.0 * h * d * d)

    def factors(self) -> FactoredMatrix:
        return full_rank(self._map())


class SparseFactors(Sparse, LowRankOutput):
    """A `[k, d, r]` and B `[h, r, d]`, each under a mask: computed as dense factors.

    Entries start 1/√density times as large as those of `factorized`, so that ‖M_i‖_F starts equal; with methods that
    start dense, as large.
    """

    masked_dense = True
    symbols = {"factor_a": "A", "factor_b": "B"}

    def __init__(self, config: SparseConfig, model: ModelConfig, layer: int, first: HeadOutput | None) -> None:
        assert config.rank is not None
        d, h, k, r = model.d_model, model.n_heads, model.kv_heads, config.rank
        matched = (model.head_width / r) ** 0.25
        stds = (model.init_std * matched, model.residual_std * matched)
        dtype = model.param_dtype
        read = MatrixAxes((1,), (0, 2), heads=0)
        of_keys, of_heads = along_key_heads(0), along_heads(0)
        self.factor_a, self.factor_a_mask = _masked_weight(config, (k, d, r), stds[0], dtype, of_keys, read)
        write = MatrixAxes((0, 1), (2,), heads=0)
        self.factor_b, self.factor_b_mask = _masked_weight(config, (h, r, d), stds[1], dtype, of_heads, write)
        super().__init__(config, model, layer, first)

    def read_weight(self) -> Float[Array, "d k r"]:
        return jnp.moveaxis(masked(self.factor_a[...], self.factor_a_mask[...]), 0, 1)

    def write_weight(self) -> Float[Array, "h r d"]:
        return masked(self.factor_b[...], self.factor_b_mask[...])

    def path_cost(self) -> PathCost:
        k, d, r = self.factor_a.shape
        return low_rank_cost(d, k, self.factor_b.shape[0], r)


class SparseBlocks(Sparse, WholeReading):
    """M_i of q × q blocks at few places of a grid, of which only these blocks are stored and computed.

    `blocks` `[h, n, q, q]`; `rows` and `columns` `[h, n]` say where in the grid they lie. The rows of x that the blocks
    read are gathered, multiplied in one product, and what they write is summed by column: on CPUs of some positions at
    a time.
    """

    symbols = {"blocks": "M"}

    def __init__(self, config: SparseConfig, model: ModelConfig, layer: int, first: HeadOutput | None) -> None:
        assert isinstance(config.pattern, Blocks)
        d, h, q = model.d_model, model.n_heads, config.pattern.size
        grid = d // q
        n = kept_count(config.pattern, config.kept, (1, d, d))
        start = Normal(model.product_std * grid / n**0.5)
        self.grid = grid
        of_heads = along_heads(0)
        self.blocks = weight((h, n, q, q), start, model.param_dtype, along=of_heads)
        self.rows = buffer((h, n), RandomPlaces(grid, column=False), "int32", of_heads)
        self.columns = buffer((h, n), RandomPlaces(grid, column=True), "int32", of_heads)
        super().__init__(config, model, layer, first)

    def write(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t d"]:
        return self._written(z_bthr, self.columns[...], self.grid)[:, :, 0]

    def write_each(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t h d"]:
        h = self.blocks.shape[0]
        places = jnp.arange(h)[:, None] * self.grid + self.columns[...]
        return self._written(z_bthr, places, h * self.grid)

    def _written(self, z_bthr: Float[Array, "b t h r"], places: Array, count: int) -> Float[Array, "b t g d"]:
        """What the blocks write, summed at `count` places in a row, of which each `grid` make a row of the width d."""
        b, t, h, d = z_bthr.shape
        _, n, q, _ = self.blocks.shape
        reads = (jnp.arange(h)[:, None] * self.grid + self.rows[...]).ravel()

        def written(z_shd: Float[Array, "s h d"]) -> Float[Array, "s gd"]:
            rows_gsq = jnp.moveaxis(z_shd.reshape(-1, h * self.grid, q), 1, 0)
            products = jnp.einsum("gsq,gqp->gsp", rows_gsq[reads], self.blocks[...].reshape(h * n, q, q))
            summed = jax.ops.segment_sum(products, places.ravel(), num_segments=count)
            return jnp.moveaxis(summed, 0, 1).reshape(-1, count * q)

        at_once = _positions_at_once(h * n * q) if jax.default_backend() == "cpu" else b * t
        return in_turns(written, at_once, z_bthr.reshape(b * t, h, d)).reshape(b, t, count // self.grid, d)

    def path_cost(self) -> PathCost:
        h, n, q, _ = self.blocks.shape
        return self.whole_cost(self.grid * q, h, write=2.0 * h * n * q * q)

    def factors(self) -> FactoredMatrix:
        h, _, q, _ = self.blocks.shape
        grid = jnp.zeros((h, self.grid, self.grid, q, q), self.blocks.dtype)
        filled = grid.at[jnp.arange(h)[:, None], self.rows[...], self.columns[...]].add(self.blocks[...])
        return full_rank(jnp.moveaxis(filled, 3, 2).reshape(h, self.grid * q, self.grid * q))


def _positions_at_once(gathered: int) -> int:
    """A power of two, so that what is gathered of the positions stays near a CPU's cores: 4 MiB of float32.

    Fewer than 32 make products too small to be fast.
    """
    return 2 ** max(2**20 // gathered, 32).bit_length() // 2


def _masked_weight(
    config: SparseConfig, shape: tuple[int, ...], std: float, dtype: str, along: Along, axes: MatrixAxes | None = None
) -> tuple[nnx.Param, nnx.Param]:
    """A weight and its mask."""
    kept = kept_count(config.pattern, config.kept, shape) * (
        config.pattern.size**2 if isinstance(config.pattern, Blocks) else 1
    )
    dense = config.method.kind in _DENSE_AT_FIRST
    scale = 1.0 if dense else config.kept**-0.5
    mask = Constant(1.0) if dense else RandomMask(config.pattern, config.kept)
    return (
        weight(shape, Normal(std * scale), dtype, axes=axes or "last two", nonzeros=kept, along=along),
        buffer(shape, mask, "bool", along),
    )

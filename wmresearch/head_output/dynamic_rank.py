"""Each head's value-output map as a product of two factors whose rank is found, head by head, while they train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from wmresearch.algebra import FactoredMatrix
from wmresearch.config.dynamic_rank import DynamicRankConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.base import HeadOutput, LowRankOutput, low_rank_cost, low_rank_factors
from wmresearch.head_output.factor_starts import PaddedNormal
from wmresearch.head_output.orders import Mix, PathCost
from wmresearch.head_output.rank_gates import make_gates
from wmresearch.head_output.rank_layout import RankLayout
from wmresearch.head_output.weights import PADDING, Along, MatrixAxes, TakenFrom, bias, buffer, weight


class DynamicRank(LowRankOutput):
    """y = Σ_i P_i (x A_i + a_i) diag(g_i) B_i + b with a rank for each key/value head; gates g where a method has them.

    `factor_a` is A `[d, w]` and `factor_b` B `[g·w, d]`: the directions of all heads lie in one row (`RankLayout`), so
    that reading and writing are one product each whatever the ranks. Attention mixes heads of equal width together.
    With one rank for all this is `factorized`, parameter by parameter.

    `origin` `[w]` holds the number that a direction had at first, by which what is random is drawn for it.
    """

    kind = "dynamic_rank"
    symbols = {"factor_a": "A", "factor_b": "B"}
    shards: tuple[int, int] = (1, 1)
    """How often the layout stands in A's row, and how many devices share each of them: `Placement.shards`."""

    def __init__(self, config: DynamicRankConfig, model: ModelConfig, layer: int, first: HeadOutput | None) -> None:
        del first
        d, h, k, dtype = model.d_model, model.n_heads, model.kv_heads, model.param_dtype
        ranks, full = config.all_ranks(model)[layer], config.full_rank()
        self.layout = layout = RankLayout.of(ranks, config.bucket, h // k)
        self.heads, self.original_heads, self.d, self.order = len(layout.query_heads), h, d, "attend_then_write"
        has_bias, w = config.has_bias(model), layout.width
        self.output_bias = bias((d,), dtype) if has_bias else None
        directions = Along(0, "directions")
        self.value_bias = bias((w,), dtype, directions) if has_bias and w else None
        self.gates = make_gates(config.method, layout, dtype)
        if not w:  # no head is left
            return
        columns, stored = _numbered_over_heads(layout, ranks, full), d * sum(ranks)
        scales = tuple((model.head_width / max(rank, 1)) ** 0.25 for rank in ranks)
        of_a = PaddedNormal("a", tuple(model.init_std * scale for scale in scales), ranks)
        of_b = PaddedNormal("b", tuple(model.residual_std * scale for scale in scales), ranks)
        rows = _numbered_over_query_heads(layout, ranks, full)
        shape_a, shape_b = (d, k * full), (h * full, d)  # with all directions
        read, write = MatrixAxes((0,), (1,), of=shape_a), MatrixAxes((0,), (1,), of=shape_b)
        taken_a = TakenFrom(of_a, (d, k, full), shape_a, 1, columns)
        taken_b = TakenFrom(of_b, (h, full, d), shape_b, 0, rows)
        self.factor_a = weight((d, w), taken_a, dtype, axes=read, nonzeros=stored, along=Along(1, "directions"))
        stored *= h // k
        self.factor_b = weight((w * (h // k), d), taken_b, dtype, axes=write, nonzeros=stored, along=Along(0, "rows"))
        self.origin = buffer((w,), Listed(tuple(layout.numbered(ranks).tolist())), "int32", directions)

    def __call__(self, x_btd: Float[Array, "b t d"], mix: Mix) -> Float[Array, "b t d"]:
        """One product reads for all heads, attention mixes bucket by bucket, one product writes."""
        if not self.layout.width:
            y_btd = jnp.zeros_like(x_btd)
        else:
            b, t, d = x_btd.shape
            z_btw = (x_btd.reshape(b * t, d) @ self.factor_a[...]).reshape(b, t, -1)
            z_btw = z_btw if self.value_bias is None else z_btw + self.value_bias[...][None, None]
            (shards, copies), mixed = self.shards, []
            for bucket, places, heads in self.layout.parts():
                held = z_btw.reshape(b, t, shards, -1)[..., places].reshape(b, t, -1, bucket.width)
                mixed.append(mix(held, heads).reshape(b * t, shards * copies, -1))
            z_nw = jnp.concatenate(mixed, axis=2).reshape(b * t, -1)
            y_btd = self.whole((z_nw @ self.gated_b()).reshape(b, t, d))
        return y_btd if self.output_bias is None else y_btd + self.output_bias[...][None, None]

    def gated_b(self) -> Float[Array, "gw d"]:
        """diag(g) B."""
        if self.gates is None:
            return self.factor_b[...]
        (shards, copies), rows = self.shards, self.layout.place_of_row()
        of_shards = np.arange(shards)[:, None, None] * self.layout.width + np.tile(rows, (1, copies, 1))
        return self.factor_b[...] * self.gates()[of_shards.ravel()][:, None]

    def spread_directions(self, layout: RankLayout, shards: tuple[int, int]) -> None:
        """From now on A's row is made of parts of this layout, each for some devices."""
        self.layout, self.shards = layout, shards
        if self.gates is not None:
            self.gates.spread(layout, shards[0])

    # The same maps with every head that is there padded to the widest, for penalties and diagnostics.

    def read_weight(self) -> Float[Array, "d k r"]:
        return jnp.moveaxis(self._of_heads(self.factor_a[...].T), 2, 0)

    def write_weight(self) -> Float[Array, "h r d"]:
        return self._of_heads(self.gated_b(), self.layout.group)

    def read_bias(self) -> Float[Array, "k r"] | None:
        return None if self.value_bias is None else self._of_heads(self.value_bias[...][:, None])[..., 0]

    def _of_heads(self, rows_wn: Float[Array, "gw n"], group: int = 1) -> Float[Array, "h r n"]:
        """Each head's rows, padded with zeros to the widest."""
        r, out, start = self.layout.widest, [], 0
        for bucket in self.layout.buckets:
            count = len(bucket.heads) * group
            here = rows_wn[start : start + count * bucket.width].reshape(count, bucket.width, -1)
            out.append(jnp.pad(here, ((0, 0), (0, r - bucket.width), (0, 0))))
            start += count * bucket.width
        return jnp.concatenate(out)

    def factors(self) -> FactoredMatrix:
        """Of all heads that there were at first; those that are gone have zeros."""
        if not self.layout.width:
            zeros = jnp.zeros((self.original_heads, self.d, 1))
            return FactoredMatrix(zeros, jnp.swapaxes(zeros, 1, 2))
        r = min(self.layout.widest, self.d)  # what is beyond d is padding
        found = low_rank_factors(self.read_weight()[..., :r], self.write_weight()[:, :r])
        return FactoredMatrix(self._among_all(found.a), self._among_all(found.b))

    def gates_of_heads(self) -> dict[str, Float[Array, " h"]]:
        """Of each head that there was at first: `rank`, its open directions; `gate`, the mean |g| of those it has."""
        if not self.layout.width:
            return dict.fromkeys(("rank", "gate"), jnp.zeros(self.original_heads))
        held_w = (self.origin[...] != PADDING).astype(float)
        gates_w = held_w if self.gates is None else held_w * jnp.abs(self.gates())
        of_heads = lambda x_w: self._of_heads(x_w.astype(float)[:, None]).sum(axis=(1, 2))
        found = {"rank": of_heads(gates_w != 0), "gate": of_heads(gates_w) / of_heads(held_w)}
        return {name: self._among_all(jnp.repeat(x_k, self.layout.group)) for name, x_k in found.items()}

    def written_biases(self) -> Float[Array, "h d"]:
        if self.value_bias is None:
            return jnp.zeros((self.original_heads, self.d))
        return self._among_all(super().written_biases())

    def _among_all(self, x_hn: Float[Array, "h ..."]) -> Float[Array, "h ..."]:
        """What is of each head that is there, at its original number."""
        if self.kept_heads is None:
            return x_hn
        out = jnp.zeros((self.original_heads, *x_hn.shape[1:]), x_hn.dtype)
        return out.at[np.array(self.layout.query_heads)].set(x_hn)

    def path_cost(self) -> PathCost:
        """Of the padded maps; what is computed costs less (`flops_per_token`)."""
        return low_rank_cost(self.d, len(self.layout.heads), self.heads, self.layout.widest)

    def flops_per_token(self, attended: float) -> float:
        w, group = self.layout.width, self.layout.group
        return 2.0 * self.d * w * (1 + group) + 2.0 * group * w * attended

    @property
    def kept_heads(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        everyone = self.layout.query_heads == tuple(range(self.original_heads))
        return None if everyone else (self.layout.query_heads, self.layout.heads)

    def cache_shapes(self) -> tuple[tuple[int, int], ...]:
        return tuple((len(bucket.heads), bucket.width) for bucket in self.layout.buckets)


@dataclass(frozen=True)
class Listed:
    """These values."""

    values: tuple[int, ...]

    def __call__(self, own: PRNGKeyArray, common: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Array:
        del own, common
        return jnp.asarray(self.values, dtype).reshape(shape)


def _numbered_over_heads(layout: RankLayout, ranks: tuple[int, ...], full: int) -> tuple[int, ...]:
    """Of each place, its direction's number among those of all heads at first."""
    origin = layout.numbered(ranks)
    found = np.where(origin == PADDING, PADDING, layout.head_of_place() * full + origin)
    return tuple(found.tolist())


def _numbered_over_query_heads(layout: RankLayout, ranks: tuple[int, ...], full: int) -> tuple[int, ...]:
    """The same of each row of B."""
    place = layout.place_of_row()
    origin, group = layout.numbered(ranks)[place], layout.group
    query_head = np.repeat(np.array(layout.query_heads, int), np.repeat(layout.widths, group))
    return tuple(np.where(origin == PADDING, PADDING, query_head * full + origin).tolist())

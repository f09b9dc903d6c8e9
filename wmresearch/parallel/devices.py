"""What devices that share a model's heads exchange: all of it, in both implementations.

In `shard_map` each device runs the model's code on its own part of the parameters, and what is exchanged is written
here. A value is *varying* where devices may differ in it and *invariant* where they may not, which JAX checks; the
gradient of making a value varying is the sum over devices. So x is made varying once, on entry to a layer: its gradient
is one all-reduce, as the layer's output is (Shoeybi et al. 2019, arXiv 1909.08053: f and g).

With `jit` the model's code sees whole arrays, and XLA finds what to exchange from how they are to be divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from wmresearch.head_output.devices import Devices
from wmresearch.parallel.mesh import HEADS


@dataclass(frozen=True)
class ManualDevices(Devices):
    """One device of several, within `shard_map`."""

    count: int
    """Devices of the head axis."""
    vocabulary: int
    """Symbols; there may be more places for them."""
    shard_positions: bool

    def enter(self, x_btd: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        if self.shard_positions:
            return jax.lax.all_gather(x_btd, HEADS, axis=1, tiled=True)
        return jax.lax.pcast(x_btd, HEADS, to="varying")

    def total(self, y_btd: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        if self.shard_positions:
            return jax.lax.psum_scatter(y_btd, HEADS, scatter_dimension=1, tiled=True)
        return jax.lax.psum(y_btd, HEADS)

    def joined(self, y_bthr: Float[Array, "b t h r"], places: Sequence[int] | None) -> Float[Array, "b t d"]:
        if self.shard_positions:
            y_bthr = jax.lax.all_to_all(y_bthr, HEADS, split_axis=1, concat_axis=2, tiled=True)
        else:
            y_bthr = jax.lax.all_gather(y_bthr, HEADS, axis=2, tiled=True, to="invarying")
        return in_order(y_bthr, places)

    def own(self, of_all: Sequence[int]) -> Int[Array, " n"]:
        return jnp.asarray(of_all, jnp.int32).reshape(self.count, -1)[jax.lax.axis_index(HEADS)]

    def positions(self, table_td: Float[Array, "t d"]) -> Float[Array, "t d"]:
        if not self.shard_positions:
            return table_td
        t = table_td.shape[0]
        return jax.lax.dynamic_slice_in_dim(table_td, self.first_position(t), t // self.count)

    def first_position(self, t: int) -> Int[Array, ""] | int:
        return jax.lax.axis_index(HEADS) * (t // self.count) if self.shard_positions else 0

    def looked_up(self, table_vd: Float[Array, "v d"], tokens_bt: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        """Each device gives the rows that it has, and zeros for other tokens."""
        v = table_vd.shape[0]
        places_bt = tokens_bt - jax.lax.axis_index(HEADS) * v
        held_bt = (places_bt >= 0) & (places_bt < v)
        return self.total(jnp.where(held_bt[..., None], table_vd[jnp.clip(places_bt, 0, v - 1)], 0))

    def nats(self, logits_btv: Float[Array, "b t v"], targets_bt: Int[Array, "b t"]) -> Float[Array, "b t"]:
        """Three numbers of each token are exchanged: the largest logit, the sum of exp, the target's logit."""
        v = logits_btv.shape[-1]
        symbols_v = jax.lax.axis_index(HEADS) * v + jnp.arange(v)
        logits_btv = jnp.where((symbols_v < self.vocabulary)[None, None], logits_btv, -jnp.inf)
        largest_bt = jax.lax.pmax(jax.lax.stop_gradient(logits_btv).max(axis=-1), HEADS)
        total_bt, target_bt = jax.lax.psum(_sums(logits_btv, largest_bt, symbols_v, targets_bt), HEADS)
        return jnp.log(total_bt) + largest_bt - target_bt


@dataclass(frozen=True)
class ShardedDevices(Devices):
    """All devices at once, within `jit`: says only how arrays are divided."""

    mesh: Mesh
    vocabulary: int
    shard_positions: bool

    def enter(self, x_btd: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        return self._divided(x_btd, "data")

    def total(self, y_btd: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        return self._divided(y_btd, "data", HEADS) if self.shard_positions else self._divided(y_btd, "data")

    def joined(self, y_bthr: Float[Array, "b t h r"], places: Sequence[int] | None) -> Float[Array, "b t d"]:
        return self.total(in_order(y_bthr, places))

    def looked_up(self, table_vd: Float[Array, "v d"], tokens_bt: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        return self.total(table_vd[tokens_bt])

    def nats(self, logits_btv: Float[Array, "b t v"], targets_bt: Int[Array, "b t"]) -> Float[Array, "b t"]:
        """As reductions over the vocabulary, so that no device needs the others' logits."""
        logits_btv = self._divided(logits_btv, "data", None, HEADS)
        symbols_v = jnp.arange(logits_btv.shape[-1])
        logits_btv = jnp.where((symbols_v < self.vocabulary)[None, None], logits_btv, -jnp.inf)
        largest_bt = jax.lax.stop_gradient(logits_btv).max(axis=-1)
        total_bt, target_bt = _sums(logits_btv, largest_bt, symbols_v, targets_bt)
        return jnp.log(total_bt) + largest_bt - target_bt

    def _divided(self, x: Float[Array, ...], *axes: str | tuple[str, ...] | None) -> Float[Array, ...]:
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, PartitionSpec(*axes)))


def _sums(
    logits_btv: Float[Array, "b t v"],
    largest_bt: Float[Array, "b t"],
    symbols_v: Int[Array, " v"],
    targets_bt: Int[Array, "b t"],
) -> tuple[Float[Array, "b t"], Float[Array, "b t"]]:
    """Σ exp(logit − largest) and the target's logit, over the symbols that are there."""
    is_target_btv: Bool[Array, "b t v"] = symbols_v[None, None] == targets_bt[..., None]
    target_bt = jnp.where(is_target_btv, logits_btv, 0).sum(axis=-1)
    return jnp.exp(logits_btv - largest_bt[..., None]).sum(axis=-1), target_bt


def in_order(y_bthr: Float[Array, "b t h r"], places: Sequence[int] | None) -> Float[Array, "b t d"]:
    """What heads at these places write side by side, in the order of their numbers."""
    b, t, count, r = y_bthr.shape
    if places is not None and tuple(places) != tuple(range(count)):
        found = {number: place for place, number in enumerate(places)}
        y_bthr = y_bthr[:, :, jnp.asarray([found[number] for number in range(max(places) + 1)])]
    return y_bthr.reshape(b, t, y_bthr.shape[2] * r)

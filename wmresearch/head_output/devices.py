"""What a model's code asks of the devices that share its heads. On one device: nothing.

`parallel.devices` has the answers of several devices. A layer *enters* once, computes what its own heads (or hidden
units) add, and takes the *total* over devices: that is all the traffic that it makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int


@dataclass(frozen=True)
class Devices:
    """One device, which has everything."""

    def enter(self, x_btd: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """The residual stream at all positions, for heads or hidden units of which each device has some."""
        return x_btd

    def total(self, y_btd: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """The sum over devices, back in the residual stream."""
        return y_btd

    def joined(self, y_bthr: Float[Array, "b t h r"], places: Sequence[int] | None) -> Float[Array, "b t d"]:
        """What heads write side by side, those of all devices in the order of their numbers."""
        del places
        return y_bthr.reshape(*y_bthr.shape[:2], -1)

    def own(self, of_all: Sequence[int]) -> Int[Array, " n"]:
        """A device's part of numbers that lie device after device."""
        return jnp.asarray(of_all, jnp.int32)

    def positions(self, table_td: Float[Array, "t d"]) -> Float[Array, "t d"]:
        """The rows that belong to the positions at which a device has the residual stream."""
        return table_td

    def first_position(self, t: int) -> Int[Array, ""] | int:
        """The first of these, of t in all."""
        del t
        return 0

    def looked_up(self, table_vd: Float[Array, "v d"], tokens_bt: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        """The rows of a table for tokens, in the residual stream."""
        return table_vd[tokens_bt]

    def nats(self, logits_btv: Float[Array, "b t v"], targets_bt: Int[Array, "b t"]) -> Float[Array, "b t"]:
        """−log softmax(logits)[target]."""
        return optax.softmax_cross_entropy_with_integer_labels(logits_btv, targets_bt)


ONE_DEVICE = Devices()

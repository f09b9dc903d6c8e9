"""Attend-then-write, y = Σ_i (P_i (x A_i + a_i)) B_i + b: what `standard` and `factorized` have in common."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from wmresearch.algebra import FactoredMatrix
from wmresearch.head_output.base import Mix


def attend_then_write(
    x_btd: Float[Array, "b t d"],
    mix: Mix,
    read_dkr: Float[Array, "d k r"],
    write_hrd: Float[Array, "h r d"],
    read_bias_kr: Float[Array, "k r"] | None = None,
    write_bias_d: Float[Array, d] | None = None,
) -> Float[Array, "b t d"]:
    """The order that never forms a d × d map: 2 d (k + h) r multiply-adds a token.

    Projects on `[b·t, d]` (one large matrix product each way); the sum over heads is the contraction over (h, r), so
    the heads' results are never concatenated and nothing of size h·d is made.
    """
    b, t, d = x_btd.shape
    _, k, r = read_dkr.shape
    value_btkr = (x_btd.reshape(b * t, d) @ read_dkr.reshape(d, k * r)).reshape(b, t, k, r)
    if read_bias_kr is not None:
        value_btkr += read_bias_kr[None, None]
    mixed_bthr = mix(value_btkr)
    y_btd = jnp.einsum("bthr,hrd->btd", mixed_bthr, write_hrd)
    return y_btd if write_bias_d is None else y_btd + write_bias_d[None, None]


def value_path_factors(read_dkr: Float[Array, "d k r"], write_hrd: Float[Array, "h r d"]) -> FactoredMatrix:
    """M_i = A_g(i) B_i for every query head i, where g(i) is the key/value head that it uses."""
    group = write_hrd.shape[0] // read_dkr.shape[1]
    return FactoredMatrix(jnp.repeat(jnp.moveaxis(read_dkr, 0, 1), group, axis=0), write_hrd)


def value_path_flops(d: int, k: int, h: int, r: int, attended: float) -> float:
    """Forward operations a token: read 2·d·k·r, mix 2·h·r·attended, write 2·h·r·d."""
    return 2.0 * d * k * r + 2.0 * h * r * attended + 2.0 * h * r * d

"""What every head output is: the part of an attention layer after the softmax.

A layer computes y = Σ_i P_i X M_i. The attention layer owns the P_i; a head output owns the maps M_i, each in two
steps: what head i *reads* of x, x ↦ z_i, and what it *writes* of z_i to the residual stream. Where P_i comes between,
before or after these steps is the order of evaluation (`orders`), the same for every kind.

Shape suffixes here and in the model: b batch, t position (s the attended one), n = b·t, d model width, h query heads,
k key/value heads, g query heads a key/value head, r width of what a head reads (the rank of its value path), e width of
queries and keys, m width of the MLP, v vocabulary. `h|1` is an axis of all query heads, or of one that they share.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from wmresearch.algebra import FactoredMatrix
from wmresearch.algebra.products import matmul
from wmresearch.config.head_output import HeadOutputConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.devices import ONE_DEVICE, Devices
from wmresearch.head_output.orders import ORDERS, Mix, PathCost, fastest
from wmresearch.head_output.weights import Along, along_heads, along_key_heads, bias


class HeadOutput(nnx.Module, abc.ABC):
    """The maps M_i of all heads of a layer. A kind says how it reads and writes; the rest follows."""

    kind: ClassVar[str]
    """As in the config."""
    symbols: ClassVar[dict[str, str]] = {}
    """Parameter → its symbol in the formula, where that differs from the name."""
    masked_dense: ClassVar[bool] = False
    """Whether zeros are computed with: a mask over a dense array saves no computation."""
    devices: Devices = ONE_DEVICE
    """Those that share the heads."""
    places: tuple[int, ...] | None = None
    """The query heads by number as they lie device after device, `PADDING` where there is none; None: all, in order."""

    @classmethod
    def form(cls, config: HeadOutputConfig) -> type[HeadOutput]:
        """The class that a config asks for; a kind of several forms has one for each."""
        del config
        return cls

    def __init__(self, config: HeadOutputConfig, model: ModelConfig, layer: int, first: HeadOutput | None) -> None:
        """A kind declares its parameters and then calls this, which needs `path_cost`.

        `first` is the head output of layer 0 (None in that layer itself), for kinds whose layers share parameters.
        """
        del layer, first
        self.heads = model.n_heads
        cost = self.path_cost()
        has_bias = config.has_bias(model)
        possible = [order for order in ORDERS if not config.loses_bias(order, model)]
        self.order = fastest(cost, model.context, possible) if config.order == "auto" else config.order
        value_bias = bias((cost.value_heads, cost.width), model.param_dtype, _along(cost.value_heads, model))
        self.value_bias = value_bias if has_bias else None
        self.output_bias = bias((model.d_model,), model.param_dtype) if has_bias else None

    def __call__(self, x_btd: Float[Array, "b t d"], mix: Mix) -> Float[Array, "b t d"]:
        """Y = Σ_i P_i (x ↦ z_i + a_i ↦ write_i) + b, with the biases a of what is read and b of what is written."""
        y_btd = self.whole(ORDERS[self.order](self, x_btd, mix))
        return y_btd if self.output_bias is None else y_btd + self.output_bias[...][None, None]

    def whole(self, y_btd: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """What all heads write, of what those of each device do: the layer's one exchange between devices."""
        return self.devices.total(y_btd)

    @property
    def side_by_side(self) -> bool:
        """Whether heads write to slices of their own, so that devices bring these together in place of a sum."""
        return False

    def spread(self, devices: Devices, places: tuple[int, ...], held: int) -> None:
        """From now on its parameters are those of `held` heads at a time, and devices share the others."""
        self.devices, self.places, self.heads = devices, places, held

    def of_own_heads(self, x_hrd: Float[Array, "h ..."]) -> Float[Array, "h ..."]:
        """Of what is there for every query head by number, the part of the heads that a device has."""
        return x_hrd if self.places is None else jnp.take(x_hrd, jnp.maximum(self.devices.own(self.places), 0), axis=0)

    def read(self, x_btkd: Float[Array, "b t h|1 d"]) -> Float[Array, "b t k r"]:
        """What the heads read, biases and all: of one x that they share, or each of its own."""
        z_btkr, bias_kr = self.read_linear(x_btkd), self.read_bias()
        if bias_kr is None:
            return z_btkr
        return z_btkr + jnp.repeat(bias_kr, z_btkr.shape[2] // bias_kr.shape[0], axis=0)[None, None]

    def read_bias(self) -> Float[Array, "k r"] | None:
        """The a of each value head."""
        return None if self.value_bias is None else self.value_bias[...]

    @abc.abstractmethod
    def read_linear(self, x_btkd: Float[Array, "b t h|1 d"]) -> Float[Array, "b t k r"]:
        """What the heads read of x: of one x that all share (k value heads, k divides h), or each of its own (h)."""

    @abc.abstractmethod
    def write(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t d"]:
        """The sum of what the heads write."""

    @abc.abstractmethod
    def write_each(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t h d"]:
        """What each head writes, before the sum."""

    @abc.abstractmethod
    def path_cost(self) -> PathCost:
        """Widths, and operations a token of each step."""

    @abc.abstractmethod
    def factors(self) -> FactoredMatrix:
        """The M_i of all query heads as A_i B_i: A `[h, d, r]`, B `[h, r, d]`; for maps of full rank, M_i and I."""

    def written_biases(self) -> Float[Array, "h d"]:
        """What each query head writes of its a_i; zeros without biases."""
        bias_kr = self.read_bias()
        if bias_kr is None:
            return jnp.zeros((self.heads, self.path_cost().d))
        bias_hr = jnp.repeat(bias_kr, self.heads // bias_kr.shape[0], axis=0)
        return self.write_each(bias_hr[None, None])[0, 0]

    def bias_written(self) -> Float[Array, " d"]:
        """Σ_i (what head i writes of a_i) + b: what the layer gives for x = 0, since attention rows sum to one."""
        written_d = self.written_biases().sum(axis=0)
        return written_d if self.output_bias is None else written_d + self.output_bias[...]

    def flops_per_token(self, attended: float) -> float:
        """Operations of a forward pass in matrix products, for one token that attends to so many keys."""
        return self.path_cost().flops_per_token(self.order, attended)

    def cache_shapes(self) -> tuple[tuple[int, int], ...]:
        """Value heads, and width, each time that attention mixes: what generation keeps of each past token."""
        return (self.path_cost().cache_shape(self.order),)

    def cache_per_token(self) -> int:
        """Numbers that generation keeps of each past token, for the value path of one layer."""
        return sum(heads * width for heads, width in self.cache_shapes())

    @property
    def kept_heads(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The query heads and the key/value heads that are there, by their original numbers; None: all, in order."""
        return None

    def symbol(self, name: str) -> str:
        """A parameter's symbol in the formula."""
        return {"value_bias": "a", "output_bias": "b", **self.symbols}.get(name, name)


def _along(value_heads: int, model: ModelConfig) -> Along | None:
    """What value heads are: those of keys, those of queries, or one that all share."""
    return {model.n_heads: along_heads(0), model.kv_heads: along_key_heads(0)}.get(value_heads)


class LowRankOutput(HeadOutput):
    """M_i = A_g(i) B_i as two stored factors, g(i) the key/value head of query head i. Says nothing of how they start.

    A kind gives `read_weight` A `[d, k, r]` and `write_weight` B `[h, r, d]`.
    """

    @abc.abstractmethod
    def read_weight(self) -> Float[Array, "d k r"]:
        """A."""

    @abc.abstractmethod
    def write_weight(self) -> Float[Array, "h r d"]:
        """B."""

    def read_linear(self, x_btkd: Float[Array, "b t h|1 d"]) -> Float[Array, "b t k r"]:
        return read_heads(x_btkd, self.read_weight())

    def write(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t d"]:
        return write_heads(z_bthr, self.write_weight())

    def write_each(self, z_bthr: Float[Array, "b t h r"]) -> Float[Array, "b t h d"]:
        return jnp.einsum("bthr,hrd->bthd", z_bthr, self.write_weight())

    def factors(self) -> FactoredMatrix:
        return low_rank_factors(self.read_weight(), self.write_weight())

    def stored(self) -> FactoredMatrix:
        """The factors as stored, the query heads that share A as one matrix [M_1 … M_g]: `[k, d, r]`, `[k, r, g·d]`."""
        a_dkr, b_hrd = self.read_weight(), self.write_weight()
        (d, k, r), h = a_dkr.shape, b_hrd.shape[0]
        grouped = jnp.moveaxis(b_hrd.reshape(k, h // k, r, d), 1, 2)
        return FactoredMatrix(jnp.moveaxis(a_dkr, 1, 0), grouped.reshape(k, r, h // k * d))

    def store(self, matrix: FactoredMatrix) -> None:
        """Makes these the stored factors; shaped as `stored` gives them."""
        k, d, r = matrix.a.shape
        b_hrd = jnp.moveaxis(matrix.b.reshape(k, r, -1, d), 2, 1).reshape(-1, r, d)
        self.set_weights(jnp.moveaxis(matrix.a, 0, 1), b_hrd)

    def set_weights(self, read_dkr: Float[Array, "d k r"], write_hrd: Float[Array, "h r d"]) -> None:
        """Makes these A and B. Only for kinds that store both of them."""
        raise NotImplementedError(self.kind)


class WholeReading(HeadOutput):
    """A head reads x itself (r = d, one value head that all share), and its map is all in what it writes."""

    def read_linear(self, x_btkd: Float[Array, "b t h|1 d"]) -> Float[Array, "b t k r"]:
        return x_btkd

    def whole_cost(self, d: int, heads: int, write: float, write_moved: int = 0) -> PathCost:
        """Reading is free."""
        steps = {"read": 0.0, "read_each": 0.0, "write": write, "write_each": write}
        return PathCost(d, heads, 1, d, **steps, copied=d, write_moved=write_moved)


def read_heads(x_btkd: Float[Array, "b t h|1 d"], weight_dkr: Float[Array, "d k r"]) -> Float[Array, "b t k r"]:
    """X A_k of one x for all k value heads, or x_i A_g(i) of an x for each query head."""
    b, t, heads, d = x_btkd.shape
    _, k, r = weight_dkr.shape
    if heads == 1:  # one large product on [b·t, d]
        return (x_btkd.reshape(b * t, d) @ weight_dkr.reshape(d, k * r)).reshape(b, t, k, r)
    grouped = x_btkd.reshape(b, t, k, heads // k, d)
    return jnp.einsum("btkgd,dkr->btkgr", grouped, weight_dkr).reshape(b, t, heads, r)


def write_heads(z_bthr: Float[Array, "b t h r"], weight_hrd: Float[Array, "h r d"]) -> Float[Array, "b t d"]:
    """Σ_i z_i B_i: the sum over heads is part of one large product, of `[b·t, h·r]` and `[h·r, d]`."""
    b, t, h, r = z_bthr.shape
    return (z_bthr.reshape(b * t, h * r) @ weight_hrd.reshape(h * r, -1)).reshape(b, t, -1)


def low_rank_factors(read_dkr: Float[Array, "d k r"], write_hrd: Float[Array, "h r d"]) -> FactoredMatrix:
    """M_i = A_g(i) B_i for every query head; where r > d, which no rank is, M_i and I."""
    group = write_hrd.shape[0] // read_dkr.shape[1]
    a_hdr = jnp.repeat(jnp.moveaxis(read_dkr, 0, 1), group, axis=0)
    if a_hdr.shape[2] > a_hdr.shape[1]:
        return full_rank(matmul(a_hdr, write_hrd))
    return FactoredMatrix(a_hdr, write_hrd)


def full_rank(map_hdd: Float[Array, "h d d"]) -> FactoredMatrix:
    """Maps without a smaller form, as M_i I."""
    return FactoredMatrix(map_hdd, jnp.broadcast_to(jnp.eye(map_hdd.shape[-1], dtype=map_hdd.dtype), map_hdd.shape))


def low_rank_cost(d: int, k: int, h: int, r: int) -> PathCost:
    """Read 2·d·k·r (each its own x: 2·d·h·r), write 2·h·r·d."""
    each = 2.0 * d * h * r
    return PathCost(d, h, k, r, read=2.0 * d * k * r, read_each=each, write=each, write_each=each)

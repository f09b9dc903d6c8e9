"""A decoder-only transformer: GPT-2 style, Llama style and between, by config."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from wmresearch.config.model import LearnedPositions, ModelConfig
from wmresearch.config.training import ExecutionConfig
from wmresearch.head_output import HeadOutput
from wmresearch.head_output.devices import ONE_DEVICE, Devices
from wmresearch.head_output.weights import Along, Normal, Params, cast_floats, weight
from wmresearch.model.attention import Attention, LayerCache
from wmresearch.model.execution import by_blocks, through_layers
from wmresearch.model.layers import Chance, Norm, dropout, fold
from wmresearch.model.mlp import Mlp

Apply: TypeAlias = Callable[[Params, Int[Array, "b t"], PRNGKeyArray | None], Float[Array, "b t v"]]
"""(parameters, tokens, dropout key or None) → logits, in float32 or better."""


class Nats(Protocol):
    """(parameters, tokens, targets, dropout key or None) → cross-entropy of each target in nats.

    `rows` are the rows' numbers in their batch, by which dropout is drawn; 0, 1, … unless given.
    """

    def __call__(
        self,
        params: Params,
        tokens_bt: Int[Array, "b t"],
        targets_bt: Int[Array, "b t"],
        key: PRNGKeyArray | None = None,
        rows_b: Int[Array, " b"] | None = None,
    ) -> Float[Array, "b t"]: ...


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): the pre-norm order."""

    def __init__(self, model: ModelConfig, layer: int, first: HeadOutput | None) -> None:
        self.attention_norm = Norm(model)
        self.attention = Attention(model, layer, first)
        self.mlp_norm = Norm(model)
        self.mlp = Mlp(model)
        self.dropout = model.dropout

    def __call__(self, x_btd: Float[Array, "b t d"], chance: Chance | None) -> Float[Array, "b t d"]:
        attended = self.attention(self.attention_norm(x_btd), fold(chance, 0))
        x_btd = x_btd + dropout(attended, self.dropout, fold(chance, 1))
        return x_btd + dropout(self.mlp(self.mlp_norm(x_btd)), self.dropout, fold(chance, 2))

    def continue_with(
        self, x_btd: Float[Array, "b t d"], cache: LayerCache, start: Int[Array, ""] | int
    ) -> tuple[Float[Array, "b t d"], LayerCache]:
        """What `__call__` gives at positions that follow those in the cache."""
        attended, cache = self.attention.continue_with(self.attention_norm(x_btd), cache, start)
        x_btd = x_btd + attended
        return x_btd + self.mlp(self.mlp_norm(x_btd)), cache


class Transformer(nnx.Module):
    """Token embedding (and positions), blocks, a last norm, logits.

    Its parameters are declared, not made (`head_output.weights`): `initialize` makes them, `make_apply` runs them.
    """

    devices: Devices = ONE_DEVICE
    """Those that share the vocabulary."""

    def __init__(self, model: ModelConfig, vocab_size: int, execution: ExecutionConfig | None = None) -> None:
        d, std, dtype = model.d_model, model.init_std, model.param_dtype
        self.embedding = weight((vocab_size, d), Normal(std), dtype, along=Along(0, "vocabulary"))
        learned = isinstance(model.positions, LearnedPositions)
        self.positions = weight((model.context, d), Normal(std), dtype) if learned else None
        first = Block(model, 0, None)
        shared = first.attention.head_output
        self.blocks = nnx.List([first, *(Block(model, layer, shared) for layer in range(1, model.n_layers))])
        self.final_norm = Norm(model)
        logits = weight((d, vocab_size), Normal(std), dtype, along=Along(1, "vocabulary"))
        self.logits = None if model.tie_embeddings else logits
        self.dropout = model.dropout
        self.execution = execution or ExecutionConfig()

    def __call__(
        self,
        tokens_bt: Int[Array, "b t"],
        key: PRNGKeyArray | None = None,
        rows_b: Int[Array, " b"] | None = None,
    ) -> Float[Array, "b t v"]:
        return self._unembedded(self._residual(tokens_bt, key, rows_b))

    def nats(
        self,
        tokens_bt: Int[Array, "b t"],
        targets_bt: Int[Array, "b t"],
        key: PRNGKeyArray | None = None,
        rows_b: Int[Array, " b"] | None = None,
    ) -> Float[Array, "b t"]:
        """Cross-entropy of each target."""
        x_btd = self.devices.enter(self._residual(tokens_bt, key, rows_b))
        nats = lambda x, targets: self.devices.nats(self._unembedded(x), targets)
        return by_blocks(nats, x_btd, targets_bt, self.execution.logits_block)

    def _residual(
        self, tokens_bt: Int[Array, "b t"], key: PRNGKeyArray | None, rows_b: Int[Array, " b"] | None
    ) -> Float[Array, "b t d"]:
        """The residual stream after the last layer and norm."""
        b, t = tokens_bt.shape
        rows_b = jnp.arange(b) if rows_b is None else rows_b
        chance = None if key is None else Chance(key, rows_b, self.devices.first_position(t))
        x_btd = dropout(self._embedded(tokens_bt, 0), self.dropout, fold(chance, 0))
        return self.final_norm(through_layers(self.blocks, x_btd, chance, self.execution))

    def _embedded(self, tokens_bt: Int[Array, "b t"], start: Int[Array, ""] | int) -> Float[Array, "b t d"]:
        """Tokens at positions from `start` on."""
        x_btd = self.devices.looked_up(self.embedding[...], tokens_bt)
        if self.positions is None:
            return x_btd
        positions = jax.lax.dynamic_slice_in_dim(self.positions[...], start, tokens_bt.shape[1])
        return x_btd + self.devices.positions(positions)[None]

    def attention_inputs(self, tokens_bt: Int[Array, "b t"]) -> list[Float[Array, "b t d"]]:
        """What the attention of each layer reads."""
        x_btd, found = self._embedded(tokens_bt, 0), []
        for block in self.blocks:
            found.append(block.attention_norm(x_btd))
            x_btd = block(x_btd, None)
        return found

    def continue_with(
        self, tokens_bt: Int[Array, "b t"], cache: Sequence[LayerCache], start: Int[Array, ""] | int
    ) -> tuple[Float[Array, "b t v"], tuple[LayerCache, ...]]:
        """The logits of tokens that follow those in the cache, the first at position `start`; the cache after."""
        x_btd, after = self._embedded(tokens_bt, start), []
        for block, layer in zip(self.blocks, cache, strict=True):
            x_btd, layer = block.continue_with(x_btd, layer, start)
            after.append(layer)
        return self._unembedded(self.final_norm(x_btd)), tuple(after)

    def _unembedded(self, x_btd: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
        """The logits of what the last norm gives."""
        b, t, d = x_btd.shape
        x_nd = x_btd.reshape(b * t, d)
        out = self.embedding[...].T if self.logits is None else self.logits[...]
        return (x_nd @ out).reshape(b, t, -1).astype(jnp.promote_types(x_nd.dtype, jnp.float32))


def make_apply(transformer: Transformer, dtype: str) -> Apply:
    """The model as a pure function of its parameters; the computation is done in `dtype`."""
    module = of_params(transformer, dtype)

    def apply(params: Params, tokens_bt: Int[Array, "b t"], key: PRNGKeyArray | None = None) -> Float[Array, "b t v"]:
        return module(params)(tokens_bt, key)

    return apply


def make_nats(transformer: Transformer, dtype: str) -> Nats:
    """The cross-entropy of the model as a pure function of its parameters; the computation is done in `dtype`."""
    module = of_params(transformer, dtype)

    def nats(
        params: Params,
        tokens_bt: Int[Array, "b t"],
        targets_bt: Int[Array, "b t"],
        key: PRNGKeyArray | None = None,
        rows_b: Int[Array, " b"] | None = None,
    ) -> Float[Array, "b t"]:
        return module(params).nats(tokens_bt, targets_bt, key, rows_b)

    return nats


def of_params(transformer: Transformer, dtype: str) -> Callable[[Params], Transformer]:
    """Parameters → the model that has them, in `dtype`."""
    graph, _ = nnx.split(transformer)
    return lambda params: nnx.merge(graph, cast_floats(params, lambda _: dtype))

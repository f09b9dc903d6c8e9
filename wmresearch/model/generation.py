"""Text from a model, token by token, with a cache of what attention needs of past positions.

A position's keys are kept, and what the heads hold of it where attention mixes it: r numbers a value head for
attend-then-write, x itself for mix-first (`head_output.orders`). So the cache is as wide as the heads' rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from wmresearch.head_output.weights import Params
from wmresearch.model.attention import Attention, LayerCache
from wmresearch.model.transformer import Transformer, of_params

Cache: TypeAlias = tuple[LayerCache, ...]


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn."""

    temperature: float = 1.0
    """Of the softmax; 0 takes the likeliest token."""
    top: int | None = None
    """Only the so many likeliest tokens can be drawn; None: all."""


def draw(logits_bv: Float[Array, "b v"], sampling: Sampling, key: PRNGKeyArray) -> Int[Array, " b"]:
    """The next token."""
    if sampling.top is not None:
        least = jax.lax.top_k(logits_bv, min(sampling.top, logits_bv.shape[-1]))[0][:, -1:]
        logits_bv = jnp.where(logits_bv < least, -jnp.inf, logits_bv)
    if sampling.temperature == 0:
        return jnp.argmax(logits_bv, axis=-1)
    return jax.random.categorical(key, logits_bv / sampling.temperature, axis=-1)


class Generator:
    """The compiled functions of generation for one model."""

    def __init__(self, transformer: Transformer, dtype: str, context: int, sampling: Sampling, chunk: int = 32) -> None:
        """`chunk`: tokens that one call of the compiled program makes."""
        module = of_params(transformer, dtype)
        self._context = context
        self.chunk = chunk

        def forward(params: Params, tokens: Int[Array, "b t"], cache: Cache, start: Any) -> tuple[Array, Cache]:
            return module(params).continue_with(tokens, cache, start)

        def prefill(params: Params, tokens: Int[Array, "b t"], cache: Cache) -> tuple[Array, Cache]:
            logits, cache = forward(params, tokens, cache, 0)
            return logits[:, -1], cache

        def more(
            params: Params, logits: Array, cache: Cache, start: Any, keys: PRNGKeyArray
        ) -> tuple[Int[Array, "b n"], Array, Cache]:
            def step(carry: tuple[Array, Cache, Any], key: PRNGKeyArray) -> tuple[tuple[Array, Cache, Any], Array]:
                logits, cache, position = carry
                token = draw(logits, sampling, key).astype(jnp.int32)
                logits, cache = forward(params, token[:, None], cache, position)
                return (logits[:, 0], cache, position + 1), token

            (logits, cache, _), tokens = jax.lax.scan(step, (logits, cache, start), keys)
            return tokens.T, logits, cache

        self._empty = lambda batch: empty_cache(transformer, batch, context, dtype)
        self._prefill = jax.jit(prefill, donate_argnums=2)
        self._more = jax.jit(more, donate_argnums=2)

    def __call__(
        self, params: Params, prompt: Int[Array, "b t"], count: int, key: PRNGKeyArray
    ) -> Iterator[Int[Array, "b n"]]:
        """Yields the tokens after a prompt in chunks `[b, n]`, `count` in all.

        Where the context is full, the last half of it is read again as a prompt, and generation goes on from there.
        """
        tokens = jnp.asarray(prompt)[:, -self._context + 1 :]
        logits, cache, position = self._read(params, tokens)
        done = 0
        while done < count:
            if position >= self._context:
                logits, cache, position = self._read(params, tokens[:, -(self._context // 2) :])
            n = min(self.chunk, count - done, self._context - position)
            keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(done, done + n))
            new, logits, cache = self._more(params, logits, cache, position, keys)
            tokens = jnp.concatenate([tokens, new], axis=1)[:, -self._context :]
            position += n
            done += n
            yield new

    def cache_bytes(self, batch: int) -> int:
        """Bytes of the cache of a whole context."""
        shapes = jax.eval_shape(lambda: self._empty(batch))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))

    def _read(self, params: Params, tokens: Int[Array, "b t"]) -> tuple[Array, Cache, int]:
        empty = self._empty(tokens.shape[0])
        logits, cache = self._prefill(params, tokens, empty)
        return logits, cache, tokens.shape[1]


def empty_cache(transformer: Transformer, batch: int, context: int, dtype: str) -> Cache:
    """Zeros, as wide as each layer's heads need."""
    return tuple(layer_cache(block.attention, batch, context, dtype) for block in transformer.blocks)


def layer_cache(layer: Attention, batch: int, context: int, dtype: str) -> LayerCache:
    """Of one layer."""
    empty = lambda shape: jnp.zeros((batch, context, *shape), dtype)
    return LayerCache(empty(layer.key_shape()), tuple(map(empty, layer.head_output.cache_shapes())))

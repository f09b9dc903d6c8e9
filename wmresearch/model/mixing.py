"""Applies P_i = softmax(causal(Q_i K_iᵀ / √e)) to what the heads hold.

Three programs for one function. `_by_blocks` skips most of the masked half and has a backward pass of its own, since
what autodiff makes of slices and masks takes twice as long on CPUs. With dropout the same blocks, and autodiff. On
GPUs, in 16-bit types and where shapes allow, cuDNN's kernel, which never writes P_i to memory.

P_i is of query heads h, keys have k heads and what is mixed has v; k and v divide h, and query heads that use one key
or value head follow one another.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from wmresearch.head_output.orders import Mix, query_blocks
from wmresearch.head_output.weights import PADDING
from wmresearch.model.layers import Chance, dropped

_CUDNN_WIDTHS = 128
"""Widest heads of cuDNN's kernel on every GPU that has it; widths are multiples of 8."""


class Heads(NamedTuple):
    """Which query heads there are."""

    numbers: Int[Array, " h"]
    """`PADDING` where there is none: what it gathers is zero."""
    padded: bool = False
    """Whether that is so anywhere."""
    shards: tuple[int, int] = (1, 1)
    """(a, c): the key heads lie in a parts, and for each there are c parts of query heads; slices are of each part."""


def attention(
    query_bthe: Float[Array, "b t h e"],
    key_btke: Float[Array, "b t k e"],
    dropout_rate: float = 0.0,
    chance: Chance | None = None,
    given: Heads | None = None,
) -> Mix:
    """The function that mixes what heads hold, each query over the positions up to its own.

    Dropout acts on the entries of P_i; it is drawn for a head by its number. The softmax is taken in float32 or better.
    """
    numbers, padded, (parts, copies) = given or Heads(jnp.arange(query_bthe.shape[2]))
    group = query_bthe.shape[2] // max(key_btke.shape[2] * copies, 1)
    scaled_bthe = query_bthe * query_bthe.shape[-1] ** -0.5
    drops = dropout_rate > 0 and chance is not None

    def mix(value_btvr: Float[Array, "b t v r"], heads: slice = slice(None), /) -> Float[Array, "b t h r"]:
        of_heads = _in_each(scaled_bthe, 2, heads, parts * copies)
        of_keys = _in_each(key_btke, 2, key_heads(heads, group), parts)
        own_numbers = _in_each(numbers, 0, heads, parts * copies)
        if not drops and jax.default_backend() == "gpu" and _cudnn_can(of_heads, of_keys, value_btvr):
            mixed = of_equal_widths(of_heads, of_keys, value_btvr, "cudnn")
        else:
            query, key, value = map(_by_head, (of_heads, of_keys, value_btvr))
            if drops:
                assert chance is not None
                blocks = _forward(query, key, value, dropout_rate, _keys(chance, own_numbers))
                mixed = _by_head(jnp.concatenate([block for block, _ in blocks], axis=2))
            else:
                mixed = _by_head(_by_blocks(query, key, value))
        return jnp.where((own_numbers != PADDING)[None, None, :, None], mixed, 0) if padded else mixed

    return mix


def _in_each(x: Float[Array, ...], axis: int, chosen: slice, parts: int) -> Float[Array, ...]:
    """A slice of each of so many equal parts of an axis."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    split = x.reshape(*before, parts, x.shape[axis] // parts, *after)
    return split[(*(slice(None) for _ in before), slice(None), chosen)].reshape(*before, -1, *after)


def _keys(chance: Chance, numbers: Int[Array, " h"]) -> PRNGKeyArray:
    """A key for each row of the batch and head: `[b, h]`."""
    of_head = lambda row: jax.vmap(lambda number: jax.random.fold_in(jax.random.fold_in(chance.key, number), row))
    return jax.vmap(lambda row: of_head(row)(numbers))(chance.rows)


def key_heads(heads: slice, group: int) -> slice:
    """The key heads of some query heads in a row, where `group` of these share one."""
    return slice(heads.start and heads.start // group, heads.stop and heads.stop // group)


def attention_after(
    query_bthe: Float[Array, "b t h e"],
    key_bske: Float[Array, "b s k e"],
    value_bsvr: Float[Array, "b s v r"],
    start: Int[Array, ""] | int,
) -> Float[Array, "b t h r"]:
    """The same for queries at positions from `start` on, over keys and values up to each one's own position."""
    t, s = query_bthe.shape[1], key_bske.shape[1]
    query_bhte, key_bkse, value_bvsr = map(_by_head, (query_bthe, key_bske, value_bsvr))
    allowed_ts = jnp.arange(s)[None, :] <= start + jnp.arange(t)[:, None]
    weights_bhts = _weights(query_bhte * query_bthe.shape[-1] ** -0.5, key_bkse, allowed_ts)
    return _by_head(_mixed(weights_bhts, value_bvsr))


def _by_head(x: Float[Array, "b t h r"]) -> Float[Array, "b h t r"]:
    """Each head's positions together, and back: products by heads are faster on matrices that lie together."""
    return jnp.swapaxes(x, 1, 2)


def _by_key(x_bhtr: Float[Array, "b h t r"], k: int) -> Float[Array, "b k gt r"]:
    """The query heads that use one key or value head, one after another as if they were positions.

    So that a product by heads has one axis of heads: with an axis for the group XLA copies the largest arrays.
    """
    b, h, t, r = x_bhtr.shape
    return x_bhtr.reshape(b, k, h * t // k, r)


def _weights(
    query_bhte: Float[Array, "b h t e"], key_bkse: Float[Array, "b k s e"], allowed_ts: Array
) -> Float[Array, "b h t s"]:
    """Rows of P_i, for scaled queries."""
    wide = jnp.promote_types(query_bhte.dtype, jnp.float32)
    score = _times_transposed(query_bhte, key_bkse, wide)
    masked = score + jnp.where(allowed_ts, 0, -jnp.inf).astype(wide)[None, None]
    return jax.nn.softmax(masked, axis=-1).astype(query_bhte.dtype)


def _mixed(weights_bhts: Float[Array, "b h t s"], value_bvsr: Float[Array, "b v s r"]) -> Float[Array, "b h t r"]:
    """P V."""
    b, h, t, _ = weights_bhts.shape
    _, v, _, r = value_bvsr.shape
    return jnp.einsum("bvts,bvsr->bvtr", _by_key(weights_bhts, v), value_bvsr).reshape(b, h, t, r)


def _times_transposed(
    x_bhtr: Float[Array, "b h t r"], value_bvsr: Float[Array, "b v s r"], dtype: jnp.dtype
) -> Float[Array, "b h t s"]:
    """X Vᵀ, summed in `dtype`."""
    b, h, t, _ = x_bhtr.shape
    _, v, s, _ = value_bvsr.shape
    by_key = _by_key(x_bhtr, v)
    return jnp.einsum("bvtr,bvsr->bvts", by_key, value_bvsr, preferred_element_type=dtype).reshape(b, h, t, s)


def _transposed_times(
    x_bhtr: Float[Array, "b h t r"], weights_bhts: Float[Array, "b h t s"], v: int
) -> Float[Array, "b v r s"]:
    """Xᵀ P, summed over the query heads of each of v."""
    return jnp.einsum("bvtr,bvts->bvrs", _by_key(x_bhtr, v), _by_key(weights_bhts, v))


def _forward(
    query_bhte: Float[Array, "b h t e"],
    key_bkte: Float[Array, "b k t e"],
    value_bvtr: Float[Array, "b v t r"],
    dropout_rate: float = 0.0,
    dropout_keys: PRNGKeyArray | None = None,
) -> list[tuple[Array, Array]]:
    """What each block of queries mixes, and its rows of P_i. Dropout has a key for each row of the batch and head."""
    out = []
    for start, end in query_blocks(query_bhte.shape[2]):
        allowed = jnp.arange(end)[None, :] <= jnp.arange(start, end)[:, None]
        weights = _weights(query_bhte[:, :, start:end], key_bkte[:, :, :end], allowed)
        if dropout_keys is not None:
            weights = dropped(weights, dropout_rate, _kept(dropout_keys, start, weights.shape, dropout_rate))
        out.append((_mixed(weights, value_bvtr[:, :, :end]), weights))
    return out


def _kept(keys: PRNGKeyArray, start: int, shape: tuple[int, ...], rate: float) -> Bool[Array, "b h t s"]:
    """Which entries of P_i are kept, for a block of queries from `start` on."""
    drawn = lambda key: jax.random.bernoulli(jax.random.fold_in(key, start), 1 - rate, shape[2:])
    return jax.vmap(jax.vmap(drawn))(keys)


@jax.custom_vjp
def _by_blocks(
    query_bhte: Float[Array, "b h t e"], key_bkte: Float[Array, "b k t e"], value_bvtr: Float[Array, "b v t r"]
) -> Float[Array, "b h t r"]:
    """P_i V_i for scaled queries, block by block of queries."""
    return _by_blocks_forward(query_bhte, key_bkte, value_bvtr)[0]


def _by_blocks_forward(query: Array, key: Array, value: Array) -> tuple[Array, tuple[Array, Array, Array, list[Array]]]:
    blocks = _forward(query, key, value)
    out = jnp.concatenate([mixed for mixed, _ in blocks], axis=2)
    return out, (query, key, value, [weights for _, weights in blocks])


def _by_blocks_backward(kept: tuple[Array, Array, Array, list[Array]], slope: Array) -> tuple[Array, Array, Array]:
    """With Y = P V and dP = dY Vᵀ: dV = Pᵀ dY, dS = P ∘ (dP − rowsum(P ∘ dP)), dQ = dS K, dK = dSᵀ Q.

    S are the scores. Dao et al. 2022 (arXiv 2205.14135), appendix B.4, without computing P again.
    """
    query, key, value, weights_of_blocks = kept
    t, k, v = query.shape[2], key.shape[1], value.shape[1]
    wide = jnp.promote_types(query.dtype, jnp.float32)
    d_query: list[Array] = []
    d_key: list[Array] = []
    d_value: list[Array] = []
    for (start, end), weights in zip(query_blocks(t), weights_of_blocks, strict=True):
        d_mixed, of_queries = slope[:, :, start:end], query[:, :, start:end]
        d_weights = _times_transposed(d_mixed, value[:, :, :end], wide)
        d_score = weights * (d_weights - jnp.sum(weights * d_weights, axis=-1, keepdims=True))
        d_score = d_score.astype(query.dtype)
        d_query.append(_mixed(d_score, key[:, :, :end]))
        d_key.append(_transposed_times(of_queries, d_score, k))
        d_value.append(_transposed_times(d_mixed, weights, v))
    return jnp.concatenate(d_query, axis=2), _summed(d_key), _summed(d_value)


_by_blocks.defvjp(_by_blocks_forward, _by_blocks_backward)


def _summed(blocks: list[Float[Array, "b k e s"]]) -> Float[Array, "b k t e"]:
    """The sum over blocks of queries, each of which has seen the positions up to its own end."""
    starts = [start for start, _ in query_blocks(blocks[-1].shape[-1])]
    columns = []
    for index, (start, last) in enumerate(zip(starts, blocks, strict=True)):
        end = last.shape[-1]
        columns.append(sum((block[..., start:end] for block in blocks[index + 1 :]), last[..., start:end]))
    return jnp.swapaxes(jnp.concatenate(columns, axis=-1), 2, 3)


def _cudnn_can(query: Array, key: Array, value: Array) -> bool:
    widest = max(query.shape[-1], value.shape[-1])
    return query.dtype in (jnp.bfloat16, jnp.float16) and key.shape[2] == value.shape[2] and widest <= _CUDNN_WIDTHS


def of_equal_widths(
    query_bthe: Float[Array, "b t h e"],
    key_btke: Float[Array, "b t k e"],
    value_btkr: Float[Array, "b t k r"],
    implementation: Literal["cudnn", "xla"],
) -> Float[Array, "b t h r"]:
    """P_i V_i for scaled queries by `jax.nn.dot_product_attention`, where e and r become one width through zeros."""
    r = value_btkr.shape[-1]
    width = -8 * (-max(query_bthe.shape[-1], r) // 8)
    pad = lambda x: jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, width - x.shape[-1])))
    mixed = jax.nn.dot_product_attention(
        pad(query_bthe), pad(key_btke), pad(value_btkr), is_causal=True, scale=1.0, implementation=implementation
    )
    return mixed[..., :r]

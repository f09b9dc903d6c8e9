"""Tasks with a known answer, made as they are asked for: nothing is prepared or read."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

LONGEST = 256
"""Positions that a task needs, of a longer context."""
_COUNTED = 1 << 22
"""Tokens among which the frequent symbols are found."""


@dataclass(frozen=True)
class Channels:
    """Copying through channels of known rank: y_t = Σ_i x_{t−i} M_i + ε, with M_i = U_i V_iᵀ of rank ρ_i.

    x is white, U_i and V_i have ρ_i orthonormal columns, ε has the standard deviation `noise` in each entry. A head
    that attends to the token i before is channel i. Under the loss −ln p(y | ŷ) of N(ŷ, `noise`²), whose least is that
    of ŷ = Σ_i x_{t−i} M_i, each direction that is missing costs 1 / (2 `noise`²) nats a token, and none that is not in
    M_i gains anything: the smallest sufficient ranks are the ρ_i.
    """

    width: int
    """d."""
    ranks: Sequence[int]
    """ρ_i of each channel."""
    context: int
    seed: int = 0
    noise: float = 2.0

    def maps(self) -> Float[np.ndarray, "h d d"]:
        """The M_i."""
        return np.stack([u @ v.T for u, v in self._factors])

    @cached_property
    def _factors(self) -> list[Float[np.ndarray, "2 d r"]]:
        draw = np.random.default_rng([self.seed, 0])
        return [np.linalg.qr(draw.standard_normal((2, self.width, rank))).Q for rank in self.ranks]

    def attention(self) -> Float[np.ndarray, "h t t"]:
        """P_i: one at the token i before; zero where there is none."""
        return np.stack([np.eye(self.context, k=-i) for i in range(len(self.ranks))])

    def batch(self, step: int, size: int) -> tuple[Float[np.ndarray, "b t d"], Float[np.ndarray, "b t d"]]:
        """The x and y of a step: a function of seed and step."""
        draw = np.random.default_rng([self.seed, 1, step])
        x = draw.standard_normal((size, self.context, self.width))
        y = self.noise * draw.standard_normal(x.shape)
        for i, (u, v) in enumerate(self._factors):
            y[:, i:] += x[:, : self.context - i] @ u @ v.T
        return x, y

    def cost_of(self, maps: Float[np.ndarray, "h d d"]) -> float:
        """Nats a token that other maps N lose to the M_i, where all channels reach: ‖N − M‖² / (2 noise²)."""
        return float(np.square(maps - self.maps()).sum() / (2 * self.noise**2))


class Task(Protocol):
    """Rows of tokens `[length]`, each a function of its arguments and of the task's seed."""

    @property
    def sizes(self) -> range:
        """What there is room for in a row."""

    def row(self, size: int, *purpose: str | int) -> NDArray[np.int32]:
        """A row of a size. What it is for, and its number among those, choose it."""


def training_row(task: Task, index: int) -> NDArray[np.int32]:
    """The row at a place of an endless sequence, of any size, each as often as others."""
    sizes = task.sizes
    return task.row(sizes[int.from_bytes(_digest("size", index)[:8], "little") % len(sizes)], "training", index)


@dataclass(frozen=True)
class Symbols:
    """The tokens that a run's tasks are written with: half are keys, half values."""

    keys: NDArray[np.int32]
    values: NDArray[np.int32]

    @classmethod
    def of(cls, tokens: NDArray[np.integer], context: int, seed: int) -> Symbols:
        """The most frequent tokens of a text (of its first 4 million), dealt out by the seed.

        So a model that learned from the text knows each of them, whatever the tokenizer. They are as many as the
        largest tasks that have room need: 128 at most.
        """
        counts = np.bincount(tokens[:_COUNTED])
        needed = min(context + 1, LONGEST) // 2
        frequent = np.argsort(-counts, kind="stable")[: min(needed, np.count_nonzero(counts))]
        dealt = frequent[_order(_bits(len(frequent), seed, "symbols"))].astype(np.int32)
        half = len(dealt) // 2
        return cls(dealt[:half], dealt[half:])


@dataclass(frozen=True)
class Recall:
    """Associative recall: k_1 v_1 … k_n v_n, then the keys again in another order, each followed by its value.

    As in multi-query associative recall (Arora et al. 2023, arXiv 2312.04927) keys differ from each other, and so do
    values; a key is asked once before any is asked again, which goes on to the end of the row.
    """

    symbols: Symbols
    length: int
    seed: int

    @property
    def sizes(self) -> range:
        """Pairs: each key stands there twice, and so does each value."""
        return range(1, min(self.length // 4, len(self.symbols.keys)) + 1)

    @property
    def curve(self) -> tuple[int, ...]:
        """2, 4, 8, … pairs, as far as there is room."""
        return tuple(2**i for i in range(1, len(self.sizes).bit_length()))

    def row(self, size: int, *purpose: str | int) -> NDArray[np.int32]:
        keys, values, rounds = self.symbols.keys, self.symbols.values, math.ceil(self.length / (2 * size))
        draw = _bits(len(keys) + len(values) + rounds * size, self.seed, "recall", size, *purpose)
        for_keys, for_values, for_asked = np.split(draw, [len(keys), len(keys) + len(values)])
        pairs = np.stack([keys[_order(for_keys)[:size]], values[_order(for_values)[:size]]], axis=1)
        asked = _order(for_asked.reshape(rounds, size)).ravel()
        return np.concatenate([pairs, pairs[asked]]).ravel()[: self.length]

    def asked(self, size: int) -> slice:
        """The places of the keys that are asked, each once; each is followed by the answer."""
        return slice(2 * size, 4 * size, 2)


@dataclass(frozen=True)
class Induction:
    """Repetition: n symbols in an order without any, again and again to the end of the row.

    What follows a symbol of the second copy is known from the first, which is what induction heads find (Olsson et al.
    2022, arXiv 2209.11895). The n symbols differ, so that one symbol is enough to know the place.
    """

    symbols: Symbols
    length: int
    seed: int

    @property
    def sizes(self) -> range:
        """Symbols, which stand there twice; one alone says nothing."""
        return range(2, min(self.length // 2, len(self.symbols.keys) + len(self.symbols.values)) + 1)

    def row(self, size: int, *purpose: str | int) -> NDArray[np.int32]:
        every = np.concatenate([self.symbols.keys, self.symbols.values])
        once = _order(_bits(len(every), self.seed, "induction", size, *purpose))[:size]
        return np.resize(every[once], self.length)

    def copies(self, size: int) -> tuple[slice, slice]:
        """The places, in the first and in the second copy, that are followed by symbols 2 … n."""
        return slice(0, size - 1), slice(size, 2 * size - 1)


def _order(bits: NDArray[np.uint64]) -> NDArray[np.intp]:
    """A permutation of the things along the last axis, by random bits for each."""
    return np.argsort(bits, axis=-1, kind="stable")


def _bits(count: int, *draw: str | int) -> NDArray[np.uint64]:
    """Random bits as a function of the arguments: the same on every machine, and with every version of numpy."""
    return np.random.Philox(key=np.frombuffer(_digest(*draw), "<u8")).random_raw(count)


def _digest(*draw: str | int) -> bytes:
    return hashlib.blake2b(" ".join(map(str, draw)).encode(), digest_size=16).digest()

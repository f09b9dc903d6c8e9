"""Batches as a function of the step, and the windows that an evaluation goes over."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmresearch.config import ConfigError, Problem

_EVERY_ROW = slice(None)
_OFFSETS = 2**32 - 1
"""Offsets are drawn as a shuffle of this many, modulo the context."""


class Stream:
    """Shuffled windows of a token array: batch(step) depends on tokens, batch size, context, seed and step alone.

    Row i of step s is window j = s · batch_size + i of an endless sequence. The array is cut into n stretches of
    `context` tokens. In epoch e = ⌊j / n⌋, with i = j mod n, window j has context + 1 tokens from context · π_e(i) +
    φ_e(i) on: π_e a permutation of the stretches, φ_e an offset in [0, context) for each window (less for an array of
    under two windows), both drawn from (seed, e). So an epoch visits each stretch once, and a token stands at another
    place of its window each time.

    Holds no state: any number of threads and processes may ask for any step in any order.
    """

    def __init__(self, tokens: NDArray[np.integer], batch_size: int, context: int, seed: int) -> None:
        """Raises ConfigError where the array has not one window."""
        if len(tokens) < context + 1:
            expected = f"at most {len(tokens) - 1}, since the train split has {len(tokens)} tokens"
            raise ConfigError([Problem("config", "model.context", str(context), expected, "or a larger corpus")])
        from grain.experimental import index_shuffle  # slow to import

        self._shuffle = index_shuffle
        self._windows = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens), context + 1)
        self.batch_size, self.context, self.seed = batch_size, context, seed
        self.windows_per_epoch = max(1, len(tokens) // context - 1)
        self._n_offsets = min(context, len(tokens) - self.windows_per_epoch * context)

    def batch(self, step: int, rows: slice = _EVERY_ROW) -> NDArray[np.int32]:
        """Rows [rows, context + 1] of the step's batch; several processes can each take a slice of the rows."""
        first = step * self.batch_size
        return self._gather(range(first, first + self.batch_size)[rows])

    def batches(self, first_step: int, n: int) -> NDArray[np.int32]:
        """The batches [n, batch_size, context + 1] of n steps that follow each other."""
        first = first_step * self.batch_size
        tokens = self._gather(range(first, first + n * self.batch_size))
        return tokens.reshape(n, self.batch_size, self.context + 1)

    def _gather(self, indices: range) -> NDArray[np.int32]:
        keys: dict[int, tuple[int, int]] = {}
        last = self.windows_per_epoch - 1
        starts = np.empty(len(indices), np.int64)
        for place, index in enumerate(indices):
            epoch, position = divmod(index, self.windows_per_epoch)
            if epoch not in keys:
                keys[epoch] = self._keys(epoch)
            for_stretch, for_offset = keys[epoch]
            # max_index is the last index, the seed has 32 bits, rounds are even and at least 4
            stretch = self._shuffle(index=position, max_index=last, seed=for_stretch, rounds=4)
            offset = self._shuffle(index=position, max_index=_OFFSETS - 1, seed=for_offset, rounds=4) % self._n_offsets
            starts[place] = self.context * stretch + offset
        return self._windows[starts].astype(np.int32)

    def _keys(self, epoch: int) -> tuple[int, int]:
        """Seeds of the permutation and of the offsets, from a hash: the same on every machine."""
        digest = hashlib.blake2b(f"{self.seed} {epoch}".encode(), digest_size=8).digest()
        return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def evaluation_windows(
    tokens: NDArray[np.integer], context: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]:
    """(inputs, targets, mask), each [W, context], W = ⌈(n - 1) / context⌉: consecutive windows without overlap.

    Row w has tokens w · context … as inputs and those one later as targets, so every token but the first is a target
    exactly once. The last window is padded with zeros, where the mask is False.
    """
    n = len(tokens) - 1
    if n < 1:
        raise ValueError(f"a split of {len(tokens)} tokens has nothing to predict; expected at least 2")
    rows = math.ceil(n / context)

    def windows(values: NDArray[Any], dtype: Any) -> NDArray[Any]:
        padded = np.zeros(rows * context, dtype)
        padded[:n] = values
        return padded.reshape(rows, context)

    return windows(tokens[:-1], np.int32), windows(tokens[1:], np.int32), windows(np.ones(n, bool), np.bool_)

"""Batches as a function of the step, and the windows that an evaluation goes over."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmresearch.config import ConfigError, Problem

_EVERY_ROW = slice(None)


class Stream:
    """Shuffled windows of a token array: batch(step) depends on tokens, batch size, context, seed and step alone.

    Row i of step s is window j = s · batch_size + i of an endless sequence. An epoch has n windows of context + 1
    tokens, neighbours sharing one token, n the same in each epoch. In epoch e = ⌊j / n⌋ window j starts at
    φ_e + context · π_e(j mod n): π_e a permutation and φ_e in [0, context) (less for an array of under two windows) an
    offset, both drawn from (seed, e). So each window comes once an epoch, and borders differ between epochs.

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
        drawn: dict[int, tuple[int, int]] = {}
        starts = np.empty(len(indices), np.int64)
        for place, index in enumerate(indices):
            epoch, position = divmod(index, self.windows_per_epoch)
            if epoch not in drawn:
                drawn[epoch] = self._draw(epoch)
            offset, key = drawn[epoch]
            # max_index is the last index, the seed has 32 bits, rounds are even and at least 4
            shuffled = self._shuffle(index=position, max_index=self.windows_per_epoch - 1, seed=key, rounds=4)
            starts[place] = offset + self.context * shuffled
        return self._windows[starts].astype(np.int32)

    def _draw(self, epoch: int) -> tuple[int, int]:
        """(offset, seed of the permutation), from a hash: the same on every machine and version of every library."""
        digest = hashlib.blake2b(f"{self.seed} {epoch}".encode(), digest_size=12).digest()
        return int.from_bytes(digest[:8], "little") % self._n_offsets, int.from_bytes(digest[8:], "little")


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

"""A text in whose batches some rows are tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmresearch.config import ConfigError, Problem, RunConfig
from wmresearch.config.data import MixtureConfig
from wmresearch.data.stream import Stream
from wmresearch.data.tasks import Induction, Recall, Symbols, Task, training_row
from wmresearch.data.tokenized import TokenizedCorpus

_GOLDEN = 2654435769
"""2³² / φ, to the next odd number."""


def training_stream(config: RunConfig, corpus: TokenizedCorpus) -> Stream:
    """The batches that a run is trained on.

    Raises:
        ConfigError: the text has not one window, or too few different symbols for a task.
    """
    like = (corpus.splits["train"].tokens, config.data.batch_size, config.model.context, config.seed)
    return Stream(*like) if config.data.mixture is None else Mixture(config.data.mixture, *like)


class Mixture(Stream):
    """Row j = s · batch_size + i of an endless sequence is a task where u_j < its share, else row j of the text.

    u_j = j · 2654435769 mod 2³² / 2³² are the multiples of the golden ratio modulo 1, which lie so evenly that every
    batch has its share of each task to about a row. A task's row is of a random size: pairs, or symbols repeated.
    """

    def __init__(self, shares: MixtureConfig, tokens: NDArray[np.integer], *like: Any) -> None:
        """Raises ConfigError where there are too few symbols."""
        super().__init__(tokens, *like)
        symbols = Symbols.of(tokens, self.context, self.seed)
        self._tasks: list[tuple[float, Task]] = []
        until = 0.0
        for name, share, kind in (("recall", shares.recall, Recall), ("induction", shares.induction, Induction)):
            task = kind(symbols, self.context + 1, self.seed)
            if share > 0 and not task.sizes:
                expected = f"0: a context of {self.context} and the train split's symbols leave no room for it"
                raise ConfigError([Problem("config", f"data.mixture.{name}", str(share), expected)])
            until += share
            self._tasks.append((until, task))

    def _gather(self, indices: range) -> NDArray[np.int32]:
        rows = super()._gather(indices)
        for place, index in enumerate(indices):
            u = index * _GOLDEN % 2**32 / 2**32
            task = next((task for until, task in self._tasks if u < until), None)
            if task is not None:
                rows[place] = training_row(task, index)
        return rows

"""What a model can do that its loss may not show: associative recall and induction, on rows that it never saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import NDArray

from wmresearch.data.tasks import LONGEST, Induction, Recall, Symbols, Task
from wmresearch.head_output.weights import Params
from wmresearch.model.transformer import Apply
from wmresearch.training.ahead import Compiling, compile_for

ROWS = 128
"""Of each size."""
TOKENS_PER_BATCH = 2048


@dataclass(frozen=True)
class RecallScore:
    """Of keys asked once each, after so many pairs."""

    pairs: int
    accuracy: float
    """Share of the keys after which their value is the likeliest token."""
    loss: float
    """−ln p(value), nats."""


@dataclass(frozen=True)
class InductionScore:
    """Of symbols 2 … n in two copies of n random symbols."""

    symbols: int
    accuracy: float
    """Share of the second copy's that are the likeliest token."""
    first_loss: float
    """Nats a token in the first copy."""
    second_loss: float

    @property
    def gain(self) -> float:
        """Nats a token that the second copy is better known than the first."""
        return self.first_loss - self.second_loss


@dataclass(frozen=True)
class TaskScores:
    """Recall by the number of pairs, and induction; nothing where a row has no room for them."""

    recall: tuple[RecallScore, ...]
    induction: InductionScore | None
    keys: int
    """Symbols that a key is drawn from."""
    values: int

    def figures(self) -> dict[str, float | None]:
        """What a summary says: the mean over the curve, and the induction scores."""
        found = self.induction
        return {
            "recall_accuracy": float(np.mean([score.accuracy for score in self.recall])) if self.recall else None,
            "induction_accuracy": found.accuracy if found else None,
            "induction_gain": found.gain if found else None,
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return self.figures() | asdict(self)


AskTasks: TypeAlias = Compiling[[Params, int], TaskScores]
"""(parameters, the run's seed) → scores."""


def make_task_evaluator(apply: Apply, tokens: NDArray[np.integer], context: int) -> AskTasks:
    """A function that scores parameters on rows which follow from the train split's symbols and the run's seed."""
    compiled, length = _make_predicted(apply), min(context, LONGEST) + 1
    of_batch = max(1, TOKENS_PER_BATCH // length)

    def prepared(seed: int) -> tuple[Recall, Induction, list[tuple[Task, int]], tuple[int, int, int]]:
        """The tasks, what is asked, and the shape in which the program takes its rows: `k b t1`."""
        symbols = Symbols.of(tokens, context, seed)
        recall, induction = Recall(symbols, length, seed), Induction(symbols, length, seed)
        asked: list[tuple[Task, int]] = [(recall, pairs) for pairs in recall.curve]
        asked += [(induction, size) for size in induction.sizes[-1:]]
        return recall, induction, asked, (-(-len(asked) * ROWS // of_batch), of_batch, length)

    def evaluator(params: Params, seed: int) -> TaskScores:
        recall, induction, asked, shape = prepared(seed)
        symbols = recall.symbols
        if not asked:
            return TaskScores((), None, len(symbols.keys), len(symbols.values))
        rows = np.zeros(shape, np.int32)
        count = len(asked) * ROWS
        made = [task.row(size, "evaluation", i) for task, size in asked for i in range(ROWS)]
        rows.reshape(-1, length)[:count] = made
        hits, nats = (
            found.reshape(-1, length - 1)[:count].reshape(len(asked), ROWS, -1).astype(np.float64)
            for found in jax.device_get(compiled(params, rows))
        )
        curve = []
        for index, pairs in enumerate(recall.curve):
            at = recall.asked(pairs)
            curve.append(RecallScore(pairs, float(hits[index, :, at].mean()), float(nats[index, :, at].mean())))
        repeated = None
        for size in induction.sizes[-1:]:
            first, second = induction.copies(size)
            losses = (float(nats[-1, :, copy].mean()) for copy in (first, second))
            repeated = InductionScore(size, float(hits[-1, :, second].mean()), *losses)
        return TaskScores(tuple(curve), repeated, len(symbols.keys), len(symbols.values))

    def ahead(params: Params, seed: int) -> None:
        *_, asked, shape = prepared(seed)
        if asked:
            compile_for(compiled, params, jax.ShapeDtypeStruct(shape, np.int32))

    return Compiling(evaluator, ahead)


def _make_predicted(
    apply: Apply,
) -> Callable[[Params, Any], tuple[Bool[Array, "k b t"], Float[Array, "k b t"]]]:
    """(parameters, rows) → (whether the next token is the likeliest, −ln p of it) at each place but the last."""

    @jax.jit
    def batches(params: Params, tokens: Int[Array, "k b t1"]) -> tuple[Bool[Array, "k b t"], Float[Array, "k b t"]]:
        def batch(tokens: Int[Array, "b t1"]) -> tuple[Bool[Array, "b t"], Float[Array, "b t"]]:
            inputs, targets = tokens[:, :-1], tokens[:, 1:]
            logits = apply(params, inputs, None)
            chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
            return logits.argmax(axis=-1) == targets, jax.nn.logsumexp(logits, axis=-1) - chosen

        return jax.lax.map(batch, tokens)

    return batches

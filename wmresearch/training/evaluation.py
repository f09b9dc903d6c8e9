"""Loss over a whole split: consecutive windows that do not overlap, each token but the first predicted once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array

from wmresearch.data import SplitTokens, evaluation_windows
from wmresearch.head_output.weights import Params
from wmresearch.training.ahead import Compiling, compile_for
from wmresearch.training.step import Evaluate

TOKENS_PER_BATCH = 8192
BATCHES_PER_CALL = 16


@dataclass(frozen=True)
class Evaluation:
    """Loss of a split in nats per token, and in bits per byte of its text."""

    loss: float
    bits_per_byte: float


def make_evaluator(
    evaluate: Evaluate, split: SplitTokens, context: int, devices: int = 1
) -> Compiling[[Params], Evaluation]:
    """A function from parameters to the split's loss.

    The batch is fixed by the context alone, so that a result does not depend on how a run was trained; where several
    devices divide it, it has as many empty rows more as make it divisible. Sums of batches are added on the host in
    float64.
    """
    windows = evaluation_windows(split.tokens, context)
    rows = max(1, TOKENS_PER_BATCH // context)
    batches = math.ceil(len(windows[0]) / rows)
    per_call = min(BATCHES_PER_CALL, batches)
    calls = math.ceil(batches / per_call)

    def arrange(array: np.ndarray) -> np.ndarray:
        padded = np.zeros((calls * per_call * rows, context), array.dtype)
        padded[: len(array)] = array
        batches = padded.reshape(calls, per_call, rows, context)
        return np.pad(batches, ((0, 0), (0, 0), (0, -rows % devices), (0, 0)))

    inputs, targets, mask = map(arrange, windows)
    predicted = int(mask.sum())

    def evaluator(params: Params) -> Evaluation:
        sums: list[Array] = [evaluate(params, inputs[i], targets[i], mask[i]) for i in range(calls)]
        nats = math.fsum(float(value) for array in jax.device_get(sums) for value in array)
        return Evaluation(nats / predicted, nats / math.log(2) / split.predicted_bytes)

    return Compiling(evaluator, lambda params: compile_for(evaluate, params, inputs[0], targets[0], mask[0]))

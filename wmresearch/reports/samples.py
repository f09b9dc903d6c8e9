"""Text from a trained run, and how fast it came."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from wmresearch.config import ConfigError, Problem
from wmresearch.model.generation import Generator, Sampling
from wmresearch.reports.trained_run import TrainedRun, open_run


@dataclass(frozen=True)
class Sample:
    """What was generated."""

    text: str
    """Without the prompt."""
    tokens: int
    tokens_per_second: float | None
    """Of generation alone, without compilation and the prompt; None for a sample of one chunk."""
    cache_bytes: int
    """Of the keys and values kept for a whole context."""


def sample(
    path: Path, prompt: str, count: int, sampling: Sampling, seed: int, step: int | None, report: Callable[[str], None]
) -> Sample:
    """Generates so many tokens after a prompt; `report` has each new piece of text as it comes.

    Raises:
        ConfigError: there is no such run or checkpoint, or its tokenizer does not know a character of the prompt.
    """
    run = open_run(path, step)
    tokens = _encoded(run, prompt)
    generator = Generator(run.transformer, run.config.model.dtype, run.config.model.context, sampling)
    tokenizer = run.corpus.tokenizer
    ids: list[int] = []
    said, seconds, timed = "", 0.0, 0
    started = time.perf_counter()
    for chunk in generator(run.params, jnp.asarray(tokens)[None], count, jax.random.key(seed)):
        ids += np.asarray(chunk)[0].tolist()
        now = time.perf_counter()
        if len(ids) > chunk.shape[1] and chunk.shape[1] == generator.chunk:  # its program was compiled before
            seconds, timed = seconds + now - started, timed + chunk.shape[1]
        text = tokenizer.decode(ids)
        whole = (
            text if len(ids) == count else text.rstrip("\N{REPLACEMENT CHARACTER}")
        )  # the rest of a character may come
        report(whole[len(said) :])
        said = whole
        started = time.perf_counter()
    return Sample(said, len(ids), timed / seconds if seconds else None, generator.cache_bytes(1))


def _encoded(run: TrainedRun, prompt: str) -> np.ndarray:
    tokenizer = run.corpus.tokenizer
    try:
        tokens = np.asarray(tokenizer.encode(prompt or "\n"), np.int32)
    except ValueError as error:
        raise ConfigError(
            [Problem("command line", "--prompt", prompt, "characters of the run's text", str(error))]
        ) from None
    return tokens

"""The spectra of a run's heads: what each W_M_i = A_i B_i is made of, beside the same figures before training."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from wmresearch.algebra.diagnostics import SpectrumStatistics, spectrum_statistics
from wmresearch.config import ConfigError, Problem
from wmresearch.head_output.weights import Params
from wmresearch.model import Transformer
from wmresearch.model.maps import at_least_float32, make_maps
from wmresearch.reports.trained_run import open_run


@dataclass(frozen=True)
class Spectrum:
    """Statistics `[layers, heads]` of a run's maps at a step, and at initialization."""

    run: str
    step: int
    trained: SpectrumStatistics
    initial: SpectrumStatistics

    @property
    def shape(self) -> tuple[int, int]:
        """Layers, heads."""
        layers, heads, _ = self.trained.singular_values.shape
        return layers, heads


def read_spectrum(path: Path, step: int | None = None) -> Spectrum:
    """The spectra of the newest checkpoint of a run, or of the one at a step.

    Raises:
        ConfigError: there is no run in the folder, or no such checkpoint.
    """
    run = open_run(path, step)
    at_first = Transformer(run.config.model, run.corpus.tokenizer.vocab_size)  # heads may have lost directions since
    trained, initial = (
        _measured(transformer, params)
        for transformer, params in ((run.transformer, run.params), (at_first, run.initial))
    )
    return Spectrum(run.name, run.step, _padded(trained, initial), _padded(initial, trained))


def _measured(transformer: Transformer, params: Params) -> SpectrumStatistics:
    maps = make_maps(transformer)
    found = jax.jit(lambda params: spectrum_statistics(maps(at_least_float32(params))))(params)
    return jax.tree.map(np.asarray, found)


def _padded(own: SpectrumStatistics, other: SpectrumStatistics) -> SpectrumStatistics:
    """With as many singular values as the other has, where it has more: the rest are zero."""
    more = max(0, other.singular_values.shape[-1] - own.singular_values.shape[-1])
    values = jnp.pad(own.singular_values, ((0, 0), (0, 0), (0, more)))
    return dataclasses.replace(own, singular_values=values)


def read_two(path: Path, other: Path, step: int | None = None) -> tuple[Spectrum, Spectrum]:
    """The spectra of two runs, each at its newest checkpoint, or both at a step, to be put side by side.

    Raises:
        ConfigError: one of them cannot be read, or they differ in layers or heads, so that no head has its like.
    """
    found: list[Spectrum] = []
    problems: list[Problem] = []
    for each in (path, other):
        try:
            found.append(read_spectrum(each, step))
        except ConfigError as error:
            hint = "" if step is None else "--step is for both runs: give one that both have, or none for the newest"
            problems += [dataclasses.replace(problem, hint=problem.hint or hint) for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    first, second = found
    if first.shape != second.shape:
        value, expected = (f"{layers} layers of {heads} heads" for layers, heads in (second.shape, first.shape))
        hint = "heads are compared one by one; choose a run of the same shape, or look at each by itself"
        raise ConfigError([Problem(second.run, "", value, f"{expected}, as in {first.run}", hint)])
    return first, second

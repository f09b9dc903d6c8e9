"""The spectra of a run's heads: what each W_M_i = A_i B_i is made of, beside the same figures before training."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from wmresearch.algebra.diagnostics import SpectrumStatistics, spectrum_statistics
from wmresearch.config import ConfigError, Problem, parse_run, yaml_text
from wmresearch.data import load_corpus
from wmresearch.head_output.weights import initialize
from wmresearch.model import Transformer
from wmresearch.model.maps import make_maps
from wmresearch.reports.markdown import pipe_table
from wmresearch.training.checkpoints import open_checkpoints
from wmresearch.training.randomness import Purpose, purpose_key
from wmresearch.training.run_directory import RunDirectory
from wmresearch.training.runtime import prepare_runtime

FORMATS = ("md", "csv", "json")

_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("effective_rank", "effective rank", ".2f"),
    ("r95", "r95", ".0f"),
    ("stable_rank", "stable rank", ".2f"),
    ("nuclear_norm", "‖M‖_*", ".4g"),
    ("frobenius_norm", "‖M‖_F", ".4g"),
    ("spectral_norm", "‖M‖₂", ".4g"),
    ("imbalance", "imbalance", ".3f"),
)


@dataclass(frozen=True)
class Spectrum:
    """Statistics `[layers, heads]` of a run's maps at a step, and at initialization."""

    run: str
    step: int
    trained: SpectrumStatistics
    initial: SpectrumStatistics


def read_spectrum(path: Path, step: int | None = None) -> Spectrum:
    """The spectra of the newest checkpoint of a run, or of the one at a step.

    Raises:
        ConfigError: there is no run in the folder, or no such checkpoint.
    """
    directory = RunDirectory(path)
    file = directory.path / "config.yaml"
    if not file.exists():
        expected = "the directory of a run (with a config.yaml)"
        hint = "a sweep's runs lie in its folder; `wm status` lists them" if (path / "sweep.json").exists() else ""
        raise ConfigError([Problem(str(path), "", "", expected, hint)])
    config = parse_run(yaml_text.read(file), str(file))
    prepare_runtime(config)
    corpus = load_corpus(config.data)
    transformer = Transformer(config.model, corpus.tokenizer.vocab_size)
    start = initialize(transformer, purpose_key(config.seed, Purpose.INITIALIZATION))
    with open_checkpoints(directory.checkpoints, config.training.keep) as checkpoints:
        steps = checkpoints.steps()
        if not steps or (step is not None and step not in steps):
            expected = f"a step with a checkpoint: {', '.join(map(str, steps))}" if steps else "a run with a checkpoint"
            raise ConfigError([Problem(str(path), "", "" if step is None else f"step {step}", expected)])
        step = steps[-1] if step is None else step
        params = checkpoints.restore_params(start, step)
    measure = jax.jit(lambda params: spectrum_statistics(make_maps(transformer)(params)))
    trained, initial = (jax.tree.map(np.asarray, measure(params)) for params in (params, start))
    return Spectrum(str(path), step, trained, initial)


def render(spectrum: Spectrum, form: str) -> str:
    """The spectra as `md`, `csv` or `json` (which has the singular values too)."""
    if form == "json":
        return json.dumps(_data(spectrum), indent=2, ensure_ascii=False) + "\n"
    layers, heads = spectrum.trained.effective_rank.shape
    header = ["layer", "head"] + [text for _, name, _ in _COLUMNS for text in (name, f"{name} at start")]
    rows = [
        [str(layer), str(head)]
        + [
            format(float(getattr(statistics, key)[layer, head]), form_)
            for key, _, form_ in _COLUMNS
            for statistics in (spectrum.trained, spectrum.initial)
        ]
        for layer in range(layers)
        for head in range(heads)
    ]
    if form == "csv":
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([header, *rows])
        return out.getvalue()
    notes = (
        f"\n{spectrum.run} at step {spectrum.step}. M is the head's map with the norm's gain folded in. Effective\n"
        "rank: exp(−Σ p ln p), p = σ/Σσ. r95: the least k that holds 95 % of Σσ². Stable rank: ‖M‖_F²/‖M‖₂².\n"
        "Imbalance: of AᵀA against BBᵀ, 0 to 1.\n"
    )
    return "\n".join(pipe_table(header, rows, [True] * len(header))) + "\n" + notes


def _data(spectrum: Spectrum) -> dict[str, Any]:
    layers, heads = spectrum.trained.effective_rank.shape

    def one(statistics: SpectrumStatistics, layer: int, head: int) -> dict[str, Any]:
        figures = {key: float(getattr(statistics, key)[layer, head]) for key, _, _ in _COLUMNS}
        return figures | {"singular_values": statistics.singular_values[layer, head].tolist()}

    rows = [
        {
            "layer": layer,
            "head": head,
            **one(spectrum.trained, layer, head),
            "initial": one(spectrum.initial, layer, head),
        }
        for layer in range(layers)
        for head in range(heads)
    ]
    return {"run": spectrum.run, "step": spectrum.step, "heads": rows}

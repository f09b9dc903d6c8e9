"""Starts a run from a trained one: its heads' maps cut to the new ranks by their SVD, everything else as it was."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx

from wmresearch.algebra import FactoredMatrix
from wmresearch.config import ConfigError, Problem, RunConfig
from wmresearch.config.data import ByteTokenizer
from wmresearch.config.factor_start import RunStart
from wmresearch.config.head_output import FactorizedConfig
from wmresearch.config.model import LearnedPositions, ModelConfig
from wmresearch.config.validation import shown
from wmresearch.head_output.base import LowRankOutput
from wmresearch.head_output.weights import Params, abstract_params, join
from wmresearch.model.maps import at_least_float32
from wmresearch.model.transformer import Transformer
from wmresearch.training.checkpoints import open_checkpoints
from wmresearch.training.run_directory import RunDirectory

_PATH = "model.head_output.init.run"


@dataclass(frozen=True)
class _Source:
    """The run to start from."""

    config: RunConfig
    directory: RunDirectory
    step: int

    def transformer(self, param_dtype: str, vocab_size: int) -> Transformer:
        return Transformer(self.config.model.model_copy(update={"param_dtype": param_dtype}), vocab_size)

    def params(self, transformer: Transformer) -> Params:
        like = abstract_params(transformer)
        with open_checkpoints(self.directory.checkpoints) as checkpoints:
            return checkpoints.restore_params(like, self.step)


def check_start(config: RunConfig, corpus_digest: str) -> None:
    """Whether there is a run to start from, where the config names one, and it fits.

    Raises:
        ConfigError: there is no such run or checkpoint, its model differs in more than the head output, or its tokens
            are others.
    """
    chosen = config.model.head_output
    if not isinstance(chosen, FactorizedConfig) or not isinstance(chosen.init, RunStart):
        return
    source = _find(chosen, chosen.init, config)
    learned = not isinstance(config.data.tokenizer, ByteTokenizer)  # from its corpus
    if learned and source.directory.summary().get("corpus_digest") != corpus_digest:
        expected = f"a run on the same corpus: the tokens of {config.data.tokenizer.kind} follow from it"
        raise ConfigError([Problem("config", _PATH, chosen.init.run, expected)])


def warm_start(config: RunConfig, vocab_size: int, params: Params) -> Params:
    """The parameters to start from: those given, unless the config names a run to start from.

    A head's map M = A B of the run becomes U √S, √S Vᵀ cut to the rank, which is the nearest map of that rank. Biases
    of what heads read become part of the output bias, Σ_i a_i B_i: the same function, since attention rows sum to one.

    Raises:
        ConfigError: there is no such run or checkpoint, or its model differs in more than the head output.
    """
    chosen = config.model.head_output
    if not isinstance(chosen, FactorizedConfig) or not isinstance(chosen.init, RunStart):
        return params
    source = _find(chosen, chosen.init, config)
    transformer = Transformer(config.model, vocab_size)
    given_by = source.transformer("float64" if config.model.param_dtype == "float64" else "float32", vocab_size)

    @jax.jit
    def start(params: Params, trained: Params) -> Params:
        new = nnx.merge(nnx.split(transformer)[0], join(at_least_float32(params), _without_head_outputs(trained)))
        old = nnx.merge(nnx.split(given_by)[0], trained)
        for layer, (to, of) in enumerate(zip(new.blocks, old.blocks, strict=True)):
            output, given = to.attention.head_output, of.attention.head_output
            ranks = chosen.layer_ranks(layer, config.model)
            assert isinstance(output, LowRankOutput)
            assert isinstance(given, LowRankOutput)
            output.store(_cut(given.stored(), ranks))
            if output.output_bias is not None and output.value_bias is not None:
                output.output_bias[...] = given.bias_written()
                output.value_bias[...] = jnp.zeros_like(output.value_bias[...])
        return nnx.to_pure_dict(nnx.state(new, nnx.Param))

    started = start(params, source.params(given_by))
    return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), started, params)


def _find(chosen: FactorizedConfig, start: RunStart, config: RunConfig) -> _Source:
    directory = RunDirectory(Path(start.run).expanduser())
    file = directory.config_file
    if not file.exists():
        raise _wrong(start, "the directory of a run (with a config.yaml)", f"looked at {file}")
    of_run = directory.config()
    if of_run.data.tokenizer != config.data.tokenizer:
        kind = of_run.data.tokenizer.kind
        expected = f"the same tokenizer as here: {config.data.tokenizer.kind}"
        raise ConfigError([Problem(str(file), "data.tokenizer", kind, expected)])
    _refuse_another_model(start, of_run.model, config.model)
    largest = max(max(chosen.layer_ranks(layer, config.model)) for layer in range(config.model.n_layers))
    rank = of_run.model.head_width
    if isinstance(of_run.model.head_output, FactorizedConfig):
        layers = range(of_run.model.n_layers)
        rank = min(max(of_run.model.head_output.layer_ranks(layer, of_run.model)) for layer in layers)
    if largest > rank:
        expected = f"ranks of at most {rank}, that of the run's heads"
        raise ConfigError([Problem("config", "model.head_output", f"rank {largest}", expected)])
    steps = directory.saved_steps()
    step = steps[-1] if start.step is None and steps else start.step
    if step is None or step not in steps:
        expected = f"a run with a checkpoint{'' if start.step is None else f' at step {start.step}'}"
        raise _wrong(start, expected, f"it has {', '.join(map(str, steps)) or 'none'}")
    return _Source(of_run, directory, step)


def _refuse_another_model(start: RunStart, old: ModelConfig, new: ModelConfig) -> None:
    """Models that differ in what the trained parameters mean. What only their training had may differ."""
    free = {"head_output", "dropout", "init_std", "dtype", "param_dtype"}
    if not isinstance(new.positions, LearnedPositions):
        free.add("context")
    olds, news = (
        model.model_dump() | {"n_kv_heads": model.kv_heads, "d_head": model.head_width, "d_mlp": model.mlp_width}
        for model in (old, new)
    )
    differing = [name for name in olds if name not in free and olds[name] != news[name]]
    expected = "a run whose model differs from this one in its head output alone"
    if differing:
        said = ", ".join(f"{name} is {shown(olds[name])} there and {shown(news[name])} here" for name in differing[:3])
        raise _wrong(start, expected, said)
    if not old.head_output.two_factors or old.head_width > old.d_model:
        raise _wrong(start, f"{expected}, and whose heads are W_V W_O or A B", f"its heads are {old.head_output.kind}")
    if old.head_output.has_bias(old) and not new.head_output.has_bias(new):
        raise _wrong(start, "a run without biases in its head output, or model.head_output.bias=true")


def _wrong(start: RunStart, expected: str, hint: str = "") -> ConfigError:
    return ConfigError([Problem("config", _PATH, start.run, expected, hint)])


def _without_head_outputs(params: Params) -> Params:
    return {
        key: _without_head_outputs(value) if isinstance(value, dict) else value
        for key, value in params.items()
        if key != "head_output"
    }


def _cut(matrix: FactoredMatrix, ranks: tuple[int, ...]) -> FactoredMatrix:
    """The nearest maps of the ranks, one for each matrix, padded with zeros to the largest."""
    balanced = matrix.balance()
    held = jnp.arange(matrix.rank)[None] < jnp.asarray(ranks)[:, None]
    a = jnp.where(held[:, None, :], balanced.a, 0)
    b = jnp.where(held[:, :, None], balanced.b, 0)
    return FactoredMatrix(a[..., : max(ranks)], b[:, : max(ranks)])

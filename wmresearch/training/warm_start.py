"""Starts a run from a trained one: its heads' maps cut to the new ranks by their SVD, everything else as it was."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx

from wmresearch.algebra import FactoredMatrix
from wmresearch.config import ConfigError, Problem, RunConfig, parse_run, yaml_text
from wmresearch.config.factor_start import RunStart
from wmresearch.config.head_output import FactorizedConfig
from wmresearch.head_output.base import LowRankOutput
from wmresearch.head_output.weights import Params, declared, initialize, join
from wmresearch.model.transformer import Transformer
from wmresearch.training.checkpoints import open_checkpoints
from wmresearch.training.run_directory import RunDirectory

_PATH = "model.head_output.init.run"


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
    source_config, source, trained = _read(chosen.init, config, vocab_size)
    transformer = Transformer(config.model, vocab_size)
    shapes = _shapes(transformer)
    differing = [
        path for path, shape in _shapes(source).items() if "head_output" not in path and shapes.get(path) != shape
    ]
    outputs = [block.attention.head_output for block in source.blocks]
    if differing or not source_config.model.head_output.two_factors:
        expected = (
            "a run whose model differs from this one in its head output alone, and whose heads are W_V W_O or A B"
        )
        said = f"differs: {', '.join(differing[:3])}" if differing else f"its heads are {outputs[0].kind}"
        raise ConfigError([Problem("config", _PATH, chosen.init.run, expected, said)])
    largest = max(max(chosen.layer_ranks(layer, config.model)) for layer in range(config.model.n_layers))
    if largest > (rank := min(output.path_cost().width for output in outputs)):
        expected = f"ranks of at most {rank}, that of the run's heads"
        raise ConfigError([Problem("config", "model.head_output", f"rank {largest}", expected)])

    @jax.jit
    def start(params: Params, trained: Params) -> Params:
        new = nnx.merge(nnx.split(transformer)[0], join(params, _without_head_outputs(trained)))
        old = nnx.merge(nnx.split(source)[0], trained)
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

    return start(params, trained)


def _read(start: RunStart, config: RunConfig, vocab_size: int) -> tuple[RunConfig, Transformer, Params]:
    directory = RunDirectory(Path(start.run).expanduser())
    file = directory.path / "config.yaml"
    if not file.exists():
        raise ConfigError(
            [Problem("config", _PATH, start.run, "the directory of a run (with a config.yaml)", f"looked at {file}")]
        )
    of_run = parse_run(yaml_text.read(file), str(file))
    if of_run.data.tokenizer != config.data.tokenizer:
        raise ConfigError(
            [Problem(str(file), "data.tokenizer", "", f"the same tokenizer as here: {config.data.tokenizer.kind}")]
        )
    source = Transformer(of_run.model, vocab_size)
    like = jax.eval_shape(lambda: initialize(source, jax.random.key(0)))
    with open_checkpoints(directory.checkpoints, of_run.training.keep) as checkpoints:
        steps = checkpoints.steps()
        step = steps[-1] if start.step is None and steps else start.step
        if step not in steps:
            expected = f"a run with a checkpoint{'' if start.step is None else f' at step {start.step}'}"
            raise ConfigError([Problem("config", _PATH, start.run, expected, f"it has {steps or 'none'}")])
        return of_run, source, checkpoints.restore_params(like, step)


def _shapes(transformer: Transformer) -> dict[str, tuple[int, ...]]:
    return {path: param.get_raw_value().shape for path, param in declared(transformer).items()}


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

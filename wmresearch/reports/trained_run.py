"""A run opened for a look at its model: config, corpus, and the parameters of one of its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wmresearch.config import ConfigError, Problem, RunConfig
from wmresearch.config.model import ModelConfig
from wmresearch.config.training import ParallelConfig
from wmresearch.data import TokenizedCorpus, load_corpus
from wmresearch.head_output.weights import Params, abstract_params
from wmresearch.model import Transformer
from wmresearch.training.checkpoints import open_checkpoints
from wmresearch.training.program import make_program
from wmresearch.training.rank_cut import model_at
from wmresearch.training.run_directory import RunDirectory
from wmresearch.training.runtime import prepare_runtime


@dataclass(frozen=True)
class TrainedRun:
    """A run at a step."""

    name: str
    """Its directory, as it was asked for."""
    step: int
    config: RunConfig
    """As the run was started."""
    model: ModelConfig
    """As it was at the step: heads may have lost directions."""
    corpus: TokenizedCorpus
    transformer: Transformer
    params: Params

    @property
    def initial(self) -> Params:
        """The parameters before the first step.

        Raises:
            ConfigError: they came from another run, which is not usable any more.
        """
        return make_program(self.config, self.corpus.tokenizer.vocab_size).initial_params()


def open_run(path: Path, step: int | None = None) -> TrainedRun:
    """A run at its newest checkpoint, or at the one of a step.

    Raises:
        ConfigError: there is no run in the folder, or no such checkpoint.
    """
    directory = RunDirectory(path)
    if not directory.config_file.exists():
        expected = "the directory of a run (with a config.yaml)"
        hint = "a sweep's runs lie in its folder; `wm status` lists them" if (path / "sweep.json").exists() else ""
        raise ConfigError([Problem(str(path), "", "", expected, hint)])
    config = directory.config()
    config = config.model_copy(update={"parallel": ParallelConfig()})  # one device is enough to look at it
    prepare_runtime(config)
    corpus = load_corpus(config.data)
    if not directory.checkpoints.is_dir():  # orbax would make it
        raise ConfigError([Problem(str(path), "", "", "a run with a checkpoint", "train it first: `wm train`")])
    with open_checkpoints(directory.checkpoints) as checkpoints:
        steps = checkpoints.steps()
        if not steps or (step is not None and step not in steps):
            expected = f"a step with a checkpoint: {', '.join(map(str, steps))}" if steps else "a run with a checkpoint"
            raise ConfigError([Problem(str(path), "", "" if step is None else f"step {step}", expected)])
        step = steps[-1] if step is None else step
        model = model_at(config.model, directory.ranks(), step)
        transformer = Transformer(model, corpus.tokenizer.vocab_size)
        like = abstract_params(transformer)
        params = checkpoints.restore_params(like, step)
    return TrainedRun(str(path), step, config, model, corpus, transformer, params)

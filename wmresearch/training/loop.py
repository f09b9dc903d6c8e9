"""Trains one run. The loop only dispatches, evaluates, logs, saves and stops; what a step does is in `step`."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeAlias

from wmresearch.config import ConfigError, Problem, RunConfig, run_id
from wmresearch.data import Stream, TokenizedCorpus, load_corpus
from wmresearch.head_output import make_head_output
from wmresearch.training.another_run import refuse_another_run
from wmresearch.training.checkpoints import open_checkpoints
from wmresearch.training.interruption import StopRequest, stop_on_signal
from wmresearch.training.manifest import make_manifest
from wmresearch.training.rank_cut import model_at
from wmresearch.training.recorder import DivergedError, Progress, Recorder, figures_of
from wmresearch.training.run_directory import FINAL, RunDirectory, RunLabels
from wmresearch.training.runtime import prepare_runtime
from wmresearch.training.stage import Stages, cut_steps
from wmresearch.training.step import Metrics, TrainState
from wmresearch.training.warm_start import check_start

Report: TypeAlias = Callable[[Progress], None]
Summary: TypeAlias = dict[str, Any]


def train(
    config: RunConfig,
    path: Path,
    labels: RunLabels | None = None,
    report: Report = lambda _: None,
    stop: StopRequest | None = None,
) -> Summary:
    """Trains a run in its directory, going on from its newest checkpoint, and returns its summary.

    A run that is finished (or diverged) is not run again. What goes wrong while it trains is written into the directory
    as the run's state and reason before it is raised. SIGINT and SIGTERM preempt it, or the caller through `stop`.

    Raises:
        RunBusyError: another process works in the directory.
        ConfigError: the corpus (or a head output of the user's own, or the run to start from) is not usable, or the
            directory is or holds something else; nothing was written.
    """
    prepare_runtime(config)
    make_head_output(config.model)  # one of the user's own may be wrong, which is said before anything is written
    started = time.monotonic()
    corpus = load_corpus(config.data, lambda message: report(Progress(0, config.training.steps, message)))
    stream = Stream(corpus.splits["train"].tokens, config.data.batch_size, config.model.context, config.seed)
    identity = run_id(config, corpus.digest)
    labels = labels or RunLabels(identity)
    if labels.run_id != identity:
        expected = f"the text of run {labels.run_id}, and it has changed since the sweep was planned"
        raise ConfigError([Problem(str(path), "data.corpus", corpus.name, expected, "start the sweep again")])
    directory = RunDirectory(path)
    refuse_another_run(directory, config, identity)
    if directory.is_new():  # else it goes on from its own checkpoint
        check_start(config, corpus.digest)
    with directory.locked():
        done = directory.summary()
        if done.get("state") in FINAL:
            return done
        (directory.path / "error.txt").unlink(missing_ok=True)
        recorder = Recorder(config, directory, labels, report, done.get("wall_seconds") or 0.0)
        try:
            with nullcontext(stop) if stop else stop_on_signal() as stop:
                state = _run(config, directory, labels, corpus, stream, recorder, stop)
        except DivergedError as error:
            return recorder.finish("diverged", str(error), started)
        except KeyboardInterrupt:
            recorder.finish("preempted", "interrupted before it could save; start again to go on", started)
            raise
        except BaseException as error:
            directory.write_error(traceback.format_exc())
            recorder.finish("failed", reason_of(error), started)
            raise
        if state is None:
            return recorder.finish("preempted", f"stopped by {stop.signal}; start again to go on", started)
        return recorder.finish("finished", None, started)


def reason_of(error: BaseException) -> str:
    """An error's class and message, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500].removesuffix(": ")


def _run(
    config: RunConfig,
    directory: RunDirectory,
    labels: RunLabels,
    corpus: TokenizedCorpus,
    stream: Stream,
    recorder: Recorder,
    stop: StopRequest,
) -> TrainState | None:
    """The state after the last step, or None where a stop was asked for before it."""
    training = config.training
    stages, model = Stages(config, corpus), config.model
    directory.write_config(config)
    manifest = make_manifest(labels.run_id, corpus.name, corpus.digest)
    directory.write_manifest(manifest | stages.of(model).program.stated())
    recorder.start(corpus_digest=corpus.digest, **figures_of(model, stages.cost(model)))
    cuts = cut_steps(config)

    with open_checkpoints(directory.checkpoints, training.keep) as checkpoints:
        saved = checkpoints.steps()
        if saved:
            model = model_at(config.model, directory.ranks(), saved[-1])
        stage = stages.of(model)
        restored = checkpoints.restore(stage.program.state_like()) if saved else None
        state = stage.program.placed(stage.program.initial_state() if restored is None else restored)
        step = int(state.step)
        recorder.resume(step)
        if stop.signal is not None and step < training.steps:  # before anything is compiled
            return None
        if training.diagnostics and step == 0:  # the null that trained spectra are seen beside
            recorder.diagnostics(0, stage.measure(state.params))
        pending: tuple[int, int, Metrics] | None = None
        while step < training.steps:
            n = min(training.steps_per_dispatch, _next_stop(config, cuts, step) - step)
            tokens = stage.program.batches(stream, step, n, stages.room)
            state, metrics = stage.dispatch(state, tokens, n, stage.program.keys())
            if pending is not None:  # read the last dispatch's metrics while this one runs
                recorder.steps(*pending)
            pending = (step, n, metrics)
            step += n
            last = step == training.steps
            stopping = stop.signal is not None and not last
            evaluating = last or _due(step, training.evaluate_every)
            saving = last or _due(step, training.checkpoint_every) or stopping
            if evaluating or saving or step in cuts:
                recorder.steps(*pending)
                pending = None
                if step in cuts:
                    model, state = stages.cut(model, state, step, stream.batch(step - 1)[:, :-1])
                    stage = stages.of(model)
                    recorder.cut(step, model, stages.cost(model))
                if evaluating:
                    recorder.validation(step, stage.validate(state.params))
                    if training.diagnostics:
                        recorder.diagnostics(step, stage.measure(state.params) | stage.decay(state))
                if saving:
                    checkpoints.save(stage.program.restored(state), step)
                recorder.pause()
            if stopping:
                return None
        if stage.test is not None:
            recorder.test(stage.test(state.params))
    return state


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


def _next_stop(config: RunConfig, cuts: Sequence[int], step: int) -> int:
    """The next step at which something happens outside the compiled program."""
    periods = [every for every in (config.training.evaluate_every, config.training.checkpoint_every) if every]
    regular = [(step // every + 1) * every for every in periods]
    return min([config.training.steps, *regular, *(cut for cut in cuts if cut > step)])

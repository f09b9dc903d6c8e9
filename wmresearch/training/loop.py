"""Trains one run. The loop only dispatches, evaluates, logs, saves and stops; what a step does is in `step`."""

from __future__ import annotations

import logging
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import jax

from wmresearch.config import ConfigError, Problem, RunConfig, run_id
from wmresearch.config.training import TrackingConfig, WandbConfig
from wmresearch.data import Stream, TokenizedCorpus, load_corpus, training_stream
from wmresearch.head_output import make_head_output
from wmresearch.parallel.agreement import agreed, failing_together, first_failure, is_first, several
from wmresearch.parallel.mesh import mesh_sizes
from wmresearch.parallel.processes import WAIT_SECONDS, Group, connect
from wmresearch.training.another_run import refuse_another_run
from wmresearch.training.checkpoint_sums import set_damaged_aside
from wmresearch.training.checkpoints import Keep, open_checkpoints
from wmresearch.training.failures import failure_of
from wmresearch.training.interruption import StopRequest, stop_on_signal
from wmresearch.training.manifest import make_manifest
from wmresearch.training.rank_cut import model_at
from wmresearch.training.recorder import DivergedError, Progress, Recorder, figures_of
from wmresearch.training.run_directory import FINAL, RunDirectory, RunLabels
from wmresearch.training.runtime import prepare_runtime
from wmresearch.training.shared import Shared
from wmresearch.training.stage import Stages, cut_steps
from wmresearch.training.step import Metrics, TrainState
from wmresearch.training.together import make_ask, unanimous
from wmresearch.training.warm_start import check_start

_LOGGER = logging.getLogger(__name__)
Report: TypeAlias = Callable[[Progress], None]
Summary: TypeAlias = dict[str, Any]


def train(
    config: RunConfig,
    path: Path,
    labels: RunLabels | None = None,
    report: Report = lambda _: None,
    stop: StopRequest | None = None,
    group: Group | None = None,
    wait_seconds: float = WAIT_SECONDS,
    fresh: bool = False,
    programs: Shared | None = None,
) -> Summary:
    """Trains a run in its directory, going on from its newest checkpoint, and returns its summary.

    A run that is finished (or diverged) is not run again. What goes wrong while it trains is written into the directory
    as the run's state and reason before it is raised. SIGINT and SIGTERM preempt it, or the caller through `stop`.

    `programs` are those that runs of one cohort share, each of which calls this on a thread of its own.

    With `fresh` what is in the directory is moved beside it first, and the run starts at its first step.

    Where several processes train it together (`group`, or `jax.distributed` has been started), all call this with the
    same arguments. Process 0 decides, reports and writes; the directory is one that all of them see, since each writes
    its part of checkpoints.

    Raises:
        RunBusyError: another process works in the directory.
        ConfigError: the corpus (or a head output of the user's own, or the run to start from) is not usable, there are
            not enough devices, the group is not complete after so many seconds, or the directory is or holds something
            else; nothing was written.
        RefusedElsewhereError: one of these, in another process of the group.
        OSError: the disk is full, or nothing can be written there any more.
        FailedAmongOthersError: anything else, where there are several processes.
    """
    prepare_runtime(config)
    programs = programs or Shared()
    if group is not None:
        connect(group, wait_seconds)
    report = report if is_first() else lambda _: None
    started = time.monotonic()
    corpus = unanimous(lambda: programs.read(lambda: _corpus(config, report)))
    stream = training_stream(config, corpus)
    identity = run_id(config, corpus.digest)
    labels = labels or RunLabels(identity)
    shared = RunDirectory(path)
    with ExitStack() as held:
        request = {"run": identity, "config": config.model_dump(mode="json")}
        asked_of_first = agreed(request)
        unanimous(lambda: _refuse_another_request(request, asked_of_first))
        unanimous(lambda: _refuse(config, shared, labels, identity, corpus, held, fresh=fresh))
        unanimous(lambda: _refuse_another_folder(shared))
        done = agreed(shared.summary())
        if done.get("state") in FINAL:
            return done
        own = shared
        if not is_first():
            config = config.model_copy(update={"tracking": TrackingConfig(wandb=WandbConfig(mode="disabled"))})
            own = RunDirectory(Path(held.enter_context(tempfile.TemporaryDirectory())))
        (own.path / "error.txt").unlink(missing_ok=True)
        recorder = Recorder(config, own, labels, report, done.get("wall_seconds") or 0.0)
        run = _Run(config, own, shared, labels, corpus, stream, recorder, programs)
        held.enter_context(failing_together(lambda reason: shared.write_failure(labels, config, reason, "error")))
        try:
            with nullcontext(stop) if stop else stop_on_signal() as stop:
                state = run.train(stop)
        except DivergedError as error:
            return recorder.finish("diverged", str(error), started, "diverged")
        except KeyboardInterrupt:
            recorder.finish("preempted", "interrupted before it could save; start again to go on", started)
            raise
        except BaseException as error:
            with suppress(OSError):  # where nothing can be written, that is what is raised
                own.write_error(traceback.format_exc())
            with suppress(OSError):
                recorder.finish("failed", first_failure() or reason_of(error), started, failure_of(error))
            raise
        if state is None:
            return recorder.finish("preempted", f"stopped by {stop.signal}; start again to go on", started)
        return recorder.finish("finished", None, started)


def _corpus(config: RunConfig, report: Report) -> TokenizedCorpus:
    make_head_output(config.model)  # one of the user's own may be wrong, which is said before anything is written
    return load_corpus(config.data, lambda message: report(Progress(0, config.training.steps, message)))


def _refuse(
    config: RunConfig,
    directory: RunDirectory,
    labels: RunLabels,
    identity: str,
    corpus: TokenizedCorpus,
    held: ExitStack,
    *,
    fresh: bool,
) -> None:
    """Does nothing where the run can be trained in the directory, which process 0 holds from then on.

    With `fresh` that is a new one: what is there is moved aside when nothing is left to refuse.

    Raises:
        RunBusyError, ConfigError: as `train`.
    """
    if labels.run_id != identity:
        expected = f"the text of run {labels.run_id}, and it has changed since the sweep was planned"
        raise ConfigError([Problem(str(directory.path), "data.corpus", corpus.name, expected, "start the sweep again")])
    if is_first() and not fresh:
        refuse_another_run(directory, config, identity)
    if (fresh or directory.state() not in FINAL) and (several() or config.parallel.mesh is not None):
        mesh_sizes(config, jax.device_count(), jax.process_count())
    if fresh or directory.is_new():  # else it goes on from its own checkpoint
        check_start(config, corpus.digest)
    if is_first():
        if fresh:
            directory.set_aside()
        held.enter_context(directory.locked())


def _refuse_another_request(own: dict[str, Any], first: dict[str, Any]) -> None:
    """Does nothing where this process is asked for what process 0 is asked for.

    Raises:
        ConfigError: it has another config, or another text.
    """
    if own != first:
        differing = [name for name, value in own["config"].items() if value != first["config"][name]]
        expected = f"run {first['run']} of process 0, with the same config"
        hint = f"they differ in {', '.join(differing)}" if differing else "they read different texts"
        raise ConfigError([Problem(f"process {jax.process_index()}", "", f"run {own['run']}", expected, hint)])


def _refuse_another_folder(directory: RunDirectory) -> None:
    """Does nothing where this process sees the folder that process 0 holds.

    Raises:
        ConfigError: it sees another one.
    """
    if several() and not directory.is_held():
        expected = "the folder of process 0: one that all processes see"
        raise ConfigError([Problem(f"process {jax.process_index()}", "", str(directory.path), expected)])


def reason_of(error: BaseException) -> str:
    """An error's class and message, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500].removesuffix(": ")


@dataclass(frozen=True)
class _Run:
    """A run that is being trained, as one process sees it."""

    config: RunConfig
    own: RunDirectory
    """Where this process writes: process 0 into the run's directory, others into one that nobody reads."""
    shared: RunDirectory
    """The run's."""
    labels: RunLabels
    corpus: TokenizedCorpus
    stream: Stream
    recorder: Recorder
    programs: Shared

    def train(self, stop: StopRequest) -> TrainState | None:
        """The state after the last step, or None where a stop was asked for before it."""
        config, recorder, training = self.config, self.recorder, self.config.training
        stages, model = Stages(config, self.corpus, self.programs), config.model
        self.own.write_config(config)
        manifest = make_manifest(self.labels.run_id, config, self.corpus.name, self.corpus.digest)
        cohort = {"cohort": self.programs.stated()}
        self.own.write_manifest(manifest | stages.of(model).program.stated() | cohort)
        recorder.start(corpus_digest=self.corpus.digest, **figures_of(model, stages.cost(model)))
        cuts = cut_steps(config)

        for said in agreed(is_first() and set_damaged_aside(self.shared.checkpoints, self.shared.lines())) or ():
            _LOGGER.warning("%s: %s", self.shared.path, said)
        keep = Keep(training.keep, training.keep_every, training.keep_best)
        with open_checkpoints(self.shared.checkpoints, keep, alike=(DivergedError,)) as checkpoints:
            # what process 0 sees in the folder, others may see later
            saved, history = agreed((checkpoints.steps()[-1:], self.shared.ranks()))
            if saved:
                model = model_at(config.model, history, saved[-1])
            stage = stages.of(model)
            state = stage.program.resume(checkpoints, saved[-1]) if saved else stage.program.start()
            step = int(state.step)
            recorder.resume(step)
            ask = make_ask(stop)
            if ask()() and step < training.steps:  # before anything is compiled
                return None
            if training.diagnostics and step == 0:  # the null that trained spectra are seen beside
                recorder.diagnostics(0, stage.measure(state.params))
            pending: tuple[int, int, Metrics] | None = None
            while step < training.steps:
                n = min(training.steps_per_dispatch, _next_stop(config, cuts, step) - step)
                given = stage.program.given()
                tokens = stage.program.batches(self.stream, step, n, stage.room)
                stop_asked = ask()
                state, metrics = stage.dispatch(state, tokens, n, given)
                if pending is not None:  # read the last dispatch's metrics while this one runs
                    recorder.steps(*pending)
                pending = (step, n, metrics)
                step += n
                last = step == training.steps
                stopping = stop_asked() and not last
                evaluating = last or _due(step, training.evaluate_every)
                saving = last or _due(step, training.checkpoint_every) or stopping
                if evaluating or saving or step in cuts:
                    recorder.steps(*pending)
                    pending = None
                    if step in cuts:
                        model, state = stages.cut(model, state, step, self.stream.batch(step - 1)[:, :-1])
                        stage = stages.of(model)
                        recorder.cut(step, model, stages.cost(model))
                    loss = None
                    if evaluating:
                        evaluation = stage.validate(state.params)
                        loss = evaluation.loss
                        recorder.validation(step, evaluation)
                        if training.diagnostics:
                            recorder.diagnostics(step, stage.measure(state.params) | stage.decay(state, given.numbers))
                    if saving:
                        checkpoints.save(stage.program.restored(state), step, self.own.lines(), loss)
                    recorder.pause()
                if stopping:
                    return None
            if stage.test is not None:
                recorder.test(stage.test(state.params))
            if training.tasks:
                recorder.tasks(stage.tasks(state.params, config.seed))
        return state


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


def _next_stop(config: RunConfig, cuts: Sequence[int], step: int) -> int:
    """The next step at which something happens outside the compiled program."""
    periods = [every for every in (config.training.evaluate_every, config.training.checkpoint_every) if every]
    regular = [(step // every + 1) * every for every in periods]
    return min([config.training.steps, *regular, *(cut for cut in cuts if cut > step)])

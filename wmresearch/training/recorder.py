"""Writes what a run says while it trains: metrics, timing, status, summary, the tracker, and progress to the caller."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from wmresearch.config import RunConfig
from wmresearch.config.dynamic_rank import DynamicRankConfig
from wmresearch.config.model import ModelConfig
from wmresearch.model.cost import Cost
from wmresearch.training.diagnostics import Diagnostics
from wmresearch.training.evaluation import Evaluation
from wmresearch.training.failures import Failure
from wmresearch.training.mirror import identity_of, tell_again, tell_diagnostics, tell_ranks
from wmresearch.training.run_directory import RunDirectory, RunLabels, State
from wmresearch.training.speed import Speed
from wmresearch.training.spikes import IN_A_ROW
from wmresearch.training.step import Metrics
from wmresearch.training.task_evaluation import TaskScores
from wmresearch.training.trackers import NoTracker, Tracker, make_tracker

HEARTBEAT_SECONDS = 1.0
_KEPT = ("train_loss", "validation_loss", "bits_per_byte")  # the newest of each stands in the summary


@dataclass(frozen=True)
class Progress:
    """How far a run is, for a progress line."""

    step: int
    steps: int
    message: str
    loss: float | None = None
    tokens_per_second: float | None = None
    seconds_left: float | None = None


def figures_of(model: ModelConfig, cost: Cost) -> dict[str, Any]:
    """What a summary says of a model's size and cost."""
    chosen = model.head_output
    ranks = chosen.all_ranks(model) if isinstance(chosen, DynamicRankConfig) else None
    return {
        "parameters": cost.parameters,
        "head_output_parameters": cost.head_output_parameters,
        "head_output_nonzeros": cost.head_output_nonzeros,
        "total_rank": None if ranks is None else sum(map(sum, ranks)),
        "masked_dense": cost.masked_dense,
        "flops_per_token": cost.training_flops_per_token,
    }


class DivergedError(Exception):
    """The loss or the gradient is not finite any more."""


class Recorder:
    """One run's pen. Metrics hold only what follows from config and step; wall-clock figures go elsewhere."""

    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        labels: RunLabels,
        report: Callable[[Progress], None],
        earlier_seconds: float = 0.0,
    ) -> None:
        """`earlier_seconds`: what earlier starts of the run took."""
        self._config, self._directory, self._labels, self._report = config, directory, labels, report
        self._figures: dict[str, Any] = {"wall_seconds": earlier_seconds}
        self._speed = Speed(config.data.batch_size * config.model.context)
        self._tracker: Tracker = NoTracker()
        self._costs: list[tuple[int, float]] = []
        """Step from which on → training FLOPs a token."""
        self._said = 0.0

    def start(self, **figures: Any) -> None:
        """The run has begun; figures of the model and corpus are known."""
        self._figures |= figures
        self._costs = [(0, self._figures["flops_per_token"])]
        self._write_summary("running")
        self._tell("starting", force=True)
        identity = identity_of(self._config, self._labels, self._directory)
        self._tracker = make_tracker(self._config.tracking.wandb, identity, self._directory.path)

    def cut(self, step: int, model: ModelConfig, cost: Cost) -> None:
        """The heads were cut after a step: the model is smaller from then on."""
        chosen = model.head_output
        assert isinstance(chosen, DynamicRankConfig)
        ranks, figures = chosen.all_ranks(model), figures_of(model, cost)
        line = {"step": step, "ranks": ranks, "final": chosen.method.kind == "fixed", **figures}
        self._directory.append_ranks(line)
        tell_ranks(self._tracker, line)
        self._after_cut(line)

    def _after_cut(self, line: dict[str, Any]) -> None:
        self._costs.append((line["step"], line["flops_per_token"]))
        self._figures |= {name: value for name, value in line.items() if name not in ("step", "ranks", "final")}

    def resume(self, step: int) -> None:
        """The run goes on from a step: what was written after it is cut away, what came before is read again."""
        self._directory.rewind(step)
        for line in self._directory.metrics():
            self._remember(line["step"], {name: value for name, value in line.items() if name != "step"})
        for line in self._directory.ranks():
            self._after_cut(line)
        tell_again(self._tracker, self._config, self._directory)
        self._tell("compiling", force=True)

    def steps(self, first: int, n: int, metrics: Metrics) -> None:
        """Reads the metrics of the steps first+1 … first+n (this waits for them) and logs those that are due.

        Raises:
            DivergedError: a loss or a gradient's norm is not finite.
        """
        arrays = jax.device_get(metrics)
        self._speed.mark(n)
        for index in range(n):
            step = first + index + 1
            values = {name: float(array[index]) for name, array in arrays.items()}
            bad = [name for name, value in values.items() if not math.isfinite(value)]
            skipping = self._config.optimizer.skip_spikes
            if skipping is not None and values[IN_A_ROW] > 0:  # nothing of this step was followed
                bad = [IN_A_ROW] if values[IN_A_ROW] > skipping.in_a_row else []
            if bad or step == 1 or step == self._config.training.steps or step % self._config.training.log_every == 0:
                self._write(step, values)
            if bad:
                said = ", ".join(f"{name} {value:g}" for name, value in values.items())
                raise DivergedError(f"not finite at step {step}: {said}")
        if self._speed.tokens_per_second is not None:
            timing = {"tokens_per_second": self._speed.tokens_per_second}
            self._directory.append_timing(first + n, timing)
            self._tracker.log(first + n, timing)
        self._figures |= {"step": first + n, "train_loss": values["train_loss"]}
        self._tell("training")

    def pause(self) -> None:
        """What came since the last dispatch was not training."""
        self._speed.restart()

    def validation(self, step: int, result: Evaluation) -> None:
        """The whole validation split was evaluated after a step."""
        if not math.isfinite(result.loss):
            raise DivergedError(f"validation loss is not finite at step {step}")
        self._write(step, {"validation_loss": result.loss, "bits_per_byte": result.bits_per_byte})
        self._write_summary("running")
        self._tell("evaluated")

    def diagnostics(self, step: int, found: Diagnostics) -> None:
        """The heads' maps were measured after a step."""
        self._directory.append_diagnostics(step, found)
        tell_diagnostics(self._tracker, self._config, step, found)

    def test(self, result: Evaluation) -> None:
        """The test split was evaluated, once, at the end."""
        self._figures["test_loss"] = result.loss

    def tasks(self, scores: TaskScores) -> None:
        """The finished model was asked for tasks with a known answer."""
        self._directory.write_tasks(scores.to_dict())
        self._figures |= scores.figures()

    def finish(
        self, state: State, reason: str | None, started: float, failure: Failure | None = None
    ) -> dict[str, Any]:
        """Writes the end of the run and returns its summary. `wall_seconds` adds up over the run's starts."""
        self._figures["wall_seconds"] += time.monotonic() - started
        self._figures["tokens_per_second"] = self._speed.tokens_per_second
        if self._costs:  # it had begun
            self._figures["training_flops"] = self._flops_so_far()
        summary = self._write_summary(state, reason, failure)
        self._tracker.finish(summary, exit_code=0 if state == "finished" else 1)
        self._tell(state, force=True, state=state, reason=reason)
        return summary

    def _flops_so_far(self) -> float:
        """Of all steps done, each with the model that it had."""
        ends = [step for step, _ in self._costs[1:]] + [self._figures.get("step", 0)]
        per_token = sum((end - start) * flops for (start, flops), end in zip(self._costs, ends, strict=True))
        return per_token * self._config.data.batch_size * self._config.model.context

    def _write(self, step: int, values: dict[str, float]) -> None:
        self._directory.append_metrics(step, values)
        self._remember(step, values)
        self._tracker.log(step, values)

    def _remember(self, step: int, values: dict[str, float]) -> None:
        self._figures |= {name: values[name] for name in _KEPT if name in values}
        self._figures["step"] = step
        if "validation_loss" in values:
            best = self._figures.get("best_validation_loss", math.inf)
            self._figures["best_validation_loss"] = min(best, values["validation_loss"])

    def _write_summary(self, state: State, reason: str | None = None, failure: Failure | None = None) -> dict[str, Any]:
        told = {"reason": reason, "failure": failure}
        return self._directory.write_summary(self._labels, self._config, state, **told, **self._figures)

    def _tell(self, message: str, *, force: bool = False, state: State = "running", reason: str | None = None) -> None:
        now = time.monotonic()
        steps = self._config.training.steps
        step = self._figures.get("step", 0)
        progress = Progress(
            step, steps, message, self._figures.get("train_loss"), self._speed.tokens_per_second,
            self._speed.seconds_left(steps - step),
        )  # fmt: skip
        self._report(progress)
        if force or now - self._said >= HEARTBEAT_SECONDS:
            self._said = now
            self._directory.write_status(
                state, reason=reason, message=message, step=step, steps=steps, loss=progress.loss,
                tokens_per_second=progress.tokens_per_second, seconds_left=progress.seconds_left,
            )  # fmt: skip

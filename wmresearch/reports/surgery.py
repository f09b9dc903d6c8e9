"""What a trained run loses where heads are dropped or maps cut to a lower rank, without training it again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import numpy as np

from wmresearch.config import ConfigError, Problem
from wmresearch.config.dynamic_rank import DynamicRankConfig
from wmresearch.head_output.weights import Params
from wmresearch.model import Transformer, make_nats
from wmresearch.model.surgery import dense_config, make_read_heads, operate, weakest, with_all_heads
from wmresearch.reports.markdown import pipe_table
from wmresearch.reports.numbers import plus_minus
from wmresearch.reports.spectrum_rendering import csv_text
from wmresearch.reports.trained_run import TrainedRun
from wmresearch.training.evaluation import make_evaluator
from wmresearch.training.step import make_evaluate


@dataclass(frozen=True)
class WeakHead:
    """A head and its ‖M‖_F, the norm's gain folded in."""

    layer: int
    head: int
    norm: float


@dataclass(frozen=True)
class Outcome:
    """The loss with the weakest heads dropped and maps of at most a rank, in nats per token of the validation split."""

    dropped: int
    rank: int | None
    """None: as trained."""
    loss: float

    @property
    def setting(self) -> str:
        heads = [f"{self.dropped} head{'s' * (self.dropped != 1)} dropped"] if self.dropped or not self.rank else []
        return ", ".join(heads + ([f"rank {self.rank}"] if self.rank else []))


@dataclass(frozen=True)
class Surgery:
    """The outcomes for a run at a step, beside the loss of the intact model."""

    run: str
    step: int
    intact: float
    outcomes: tuple[Outcome, ...]
    weakest: tuple[WeakHead, ...]
    """The heads that were dropped, the first to go first: an outcome has dropped the first so many of them."""


def measure_surgery(
    run: TrainedRun, drops: Sequence[int], ranks: Sequence[int], report: Callable[[str], None] = lambda _: None
) -> Surgery:
    """The loss over the whole validation split at every number of dropped heads with every rank, without training.

    Without a number no head is dropped, and without a rank no map is cut. Computed in float32 or better, whatever the
    run was trained in: where nothing is changed nothing but rounding differs.

    Raises:
        ConfigError: the model has fewer heads, or a rank is not from 1 to its width.
    """
    _refuse_out_of_range(run, drops, ranks)
    model = run.model
    heads = jax.jit(make_read_heads(run.transformer))(run.params)
    params = with_all_heads(run.transformer, model, run.params)
    trained = run.config.model.head_output
    nested = isinstance(trained, DynamicRankConfig) and trained.method.kind == "nested"
    order = weakest(heads.norms, max(drops, default=0))
    cuts: Sequence[int | None] = ranks or [None]
    settings = list(product(drops or [0], cuts))

    report(f"evaluating 1 of {len(settings) + 1}: intact")
    intact = _loss_of(run, run.transformer)(run.params)
    loss = _loss_of(run, Transformer(dense_config(model), run.corpus.tokenizer.vocab_size))
    outcomes = []
    for number, (dropped, rank) in enumerate(settings, start=2):
        report(f"evaluating {number} of {len(settings) + 1}: {Outcome(dropped, rank, 0).setting}")
        changed = operate(params, heads, order[:dropped], rank, in_order=nested)
        outcomes.append(Outcome(dropped, rank, loss(changed)))
    norms = np.asarray(heads.norms)
    listed = tuple(WeakHead(*place, float(norms[place])) for place in order)
    return Surgery(run.name, run.step, intact, tuple(outcomes), listed)


def _refuse_out_of_range(run: TrainedRun, drops: Sequence[int], ranks: Sequence[int]) -> None:
    model = run.config.model
    all_heads = model.n_layers * model.n_heads
    heads = f"at most {all_heads}, the heads of {run.name} ({model.n_layers} layers of {model.n_heads})"
    width = f"a rank from 1 to d_model = {model.d_model}"
    problems = [Problem("command line", "--drop-heads", str(k), heads) for k in drops if not 0 <= k <= all_heads]
    problems += [Problem("command line", "--truncate", str(r), width) for r in ranks if not 1 <= r <= model.d_model]
    if problems:
        raise ConfigError(problems)


def _loss_of(run: TrainedRun, transformer: Transformer) -> Callable[[Params], float]:
    dtype = "float64" if run.config.model.dtype == "float64" else "float32"
    evaluate = make_evaluate(make_nats(transformer, dtype))
    evaluator = make_evaluator(evaluate, run.corpus.splits["validation"], run.config.model.context)
    return lambda params: evaluator(params).loss


def render_surgery(surgery: Surgery, form: str) -> str:
    """The outcomes as `md`, `csv` or `json`, with the heads that were dropped."""
    if form == "json":
        return json.dumps(_data(surgery), indent=2, ensure_ascii=False) + "\n"
    return _csv(surgery) if form == "csv" else _markdown(surgery)


def _csv(surgery: Surgery) -> str:
    """Numbers at full precision; no rank where maps are as trained."""
    header = ("setting", "heads dropped", "rank", "validation loss", "difference", "dropped")
    intact = ("intact", 0, "", surgery.intact, 0.0, "")
    rows = [
        (o.setting, o.dropped, o.rank or "", o.loss, o.loss - surgery.intact, _places(surgery.weakest[: o.dropped]))
        for o in surgery.outcomes
    ]
    return csv_text([header, intact, *rows])


def _markdown(surgery: Surgery) -> str:
    rows = [["intact", plus_minus(surgery.intact, None), plus_minus(None, None)]]
    for outcome in surgery.outcomes:
        difference = plus_minus(outcome.loss - surgery.intact, None, signed=True)
        rows.append([outcome.setting, plus_minus(outcome.loss, None), difference])
    lines = [*pipe_table(("setting", "validation loss", "Δ to intact"), rows, [False, True, True]), ""]
    if surgery.weakest:
        listed = [[str(n), str(w.layer), str(w.head), f"{w.norm:.4g}"] for n, w in enumerate(surgery.weakest, start=1)]
        lines += [*pipe_table(("dropped as", "layer", "head", "‖M‖_F"), listed, [True] * 4), ""]
    lines += [
        f"{surgery.run} at step {surgery.step}, not trained again. Losses in nats/token over the whole validation",
        "split. M is the head's map with the norm's gain folded in. Heads go in the order of their ‖M‖_F, the least of",
        "all layers first. Rank: each map cut to so many leading singular directions (of nested ranks: to its first",
        "ones), as it is where it has no more.",
    ]
    return "\n".join(lines) + "\n"


def _places(heads: Sequence[WeakHead]) -> str:
    return "; ".join(f"layer {head.layer} head {head.head} ({head.norm:.4g})" for head in heads)


def _data(surgery: Surgery) -> dict[str, Any]:
    listed = [{"layer": head.layer, "head": head.head, "frobenius_norm": head.norm} for head in surgery.weakest]
    return {
        "run": surgery.run,
        "step": surgery.step,
        "intact": {"validation_loss": surgery.intact},
        "outcomes": [
            {
                "setting": outcome.setting,
                "validation_loss": outcome.loss,
                "difference": outcome.loss - surgery.intact,
                "rank": outcome.rank,
                "dropped": listed[: outcome.dropped],
            }
            for outcome in surgery.outcomes
        ],
    }

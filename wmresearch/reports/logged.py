"""What runs log, and where people see it: each name stands here once, and in no other place."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wmresearch.sweeps.store import read_plan
from wmresearch.training.rows import layer_means, ranks_row
from wmresearch.training.run_directory import RunDirectory

Section = Literal["main comparison", "optimization", "W_M spectra", "cost", "failures"]
SECTIONS: tuple[Section, ...] = ("main comparison", "optimization", "W_M spectra", "cost", "failures")


@dataclass(frozen=True)
class Logged:
    """A metric, or a family of them: `*` stands for a kind, a layer, or what else their names differ in."""

    name: str
    title: str
    section: Section
    shown: Literal["curve", "bar", "picture"] = "curve"
    """A curve over steps, each member of a family in it; a bar for each arm; pictures over steps."""
    main: bool = False
    """Every run logs it, unless it ended before it could."""
    log: bool = False

    def of(self, names: Iterable[str]) -> list[str]:
        """Those of the names that are it, or of its family, numbers in their order."""
        pattern = re.compile(re.escape(self.name).replace(r"\*", "[^/]+"))
        return sorted((name for name in names if pattern.fullmatch(name)), key=_natural)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part or 0), word) for word, part in re.findall(r"(\D+)(\d*)", name)]


_STATISTICS = {
    "effective_rank": "effective rank", "stable_rank": "stable rank", "r95": "r95", "nuclear_norm": "nuclear norm",
    "frobenius_norm": "Frobenius norm", "spectral_norm": "spectral norm", "imbalance": "imbalance of the factors",
    "overlap": "overlap with other heads", "copying": "copying score",
}  # fmt: skip
_OF_SOME = {"rank": "open directions of a head", "gate": "mean size of the gates"}

HISTORY = (
    Logged("validation_loss", "Validation loss, nats per token", "main comparison", main=True),
    Logged("bits_per_byte", "Validation loss, bits per byte", "main comparison", main=True),
    Logged("train_loss", "Training loss, nats per token", "main comparison", main=True),
    Logged("gradient_norm", "Gradient norm", "optimization", main=True, log=True),
    Logged("learning_rate", "Learning rate", "optimization", main=True),
    Logged("heads/lambda_eff/mean", "λ_eff of decay on head outputs, mean", "optimization", log=True),
    Logged("heads/lambda_eff/layer*", "λ_eff of decay on head outputs, by layer", "optimization", log=True),
    Logged("penalty/*_strength", "Strength of penalties", "optimization", log=True),
    Logged("penalty/*_share", "Penalties as a share of the loss", "optimization"),
    Logged("penalty/*_added", "What penalties add to the loss", "optimization"),
    Logged("penalty/*_threshold", "Threshold of proximal steps", "optimization", log=True),
    Logged("penalty/*", "Penalties", "optimization"),
    Logged("sparsity/density", "Share of entries that are not zero", "optimization"),
    Logged("spectra", "Singular values of the heads' maps", "W_M spectra", "picture", main=True),
    *(Logged(f"heads/{name}/mean", f"{title}, mean over heads", "W_M spectra", main=True)
      for name, title in _STATISTICS.items()),
    *(Logged(f"heads/{name}/mean", title, "W_M spectra") for name, title in _OF_SOME.items()),
    Logged("rank/total", "Total rank after cuts", "W_M spectra"),
    Logged("rank/expected", "Expected number of open directions", "W_M spectra"),
    Logged("rank/open", "Number of open directions", "W_M spectra"),
    Logged("rank/budget", "Budget of directions", "W_M spectra"),
    Logged("rank/strength", "Strength of the gates' penalty", "W_M spectra", log=True),
    Logged("rank/layer*", "Total rank after cuts, by layer", "W_M spectra"),
    *(Logged(f"heads/{name}/layer*", f"{title}, by layer", "W_M spectra", main=True)
      for name, title in _STATISTICS.items()),
    *(Logged(f"heads/{name}/layer*", f"{title}, by layer", "W_M spectra") for name, title in _OF_SOME.items()),
    Logged("tokens_per_second", "Training speed, tokens a second", "cost", main=True),
    Logged("updates_skipped", "Updates that were skipped", "failures"),
    Logged("updates_skipped_in_a_row", "Updates that were skipped in a row", "failures"),
)  # fmt: skip
"""By step. Of two that a name could be of, it is of the first."""

SUMMARY = (
    Logged("test_loss", "Test loss, nats per token", "main comparison", "bar", main=True),
    Logged("validation_loss", "Validation loss at the end", "main comparison", "bar", main=True),
    Logged("recall_accuracy", "Associative recall, share of answers that are right", "main comparison", "bar"),
    Logged("induction_accuracy", "Induction, share of tokens that are right", "main comparison", "bar"),
    Logged("induction_gain", "Induction, nats gained on the second copy", "main comparison", "bar"),
    Logged("parameters", "Parameters", "cost", "bar", main=True),
    Logged("head_output_parameters", "Parameters of head outputs", "cost", "bar", main=True),
    Logged("head_output_nonzeros", "Non-zeros of head outputs", "cost", "bar", main=True),
    Logged("total_rank", "Total rank", "cost", "bar"),
    Logged("flops_per_token", "Training FLOPs a token", "cost", "bar", main=True),
    Logged("training_flops", "FLOPs of the whole training", "cost", "bar", main=True),
    Logged("tokens_per_second", "Tokens a second at the end", "cost", "bar", main=True),
    Logged("wall_seconds", "Seconds", "cost", "bar", main=True),
    Logged("step", "Last step of the run that ended first", "failures", "bar", main=True),
)
"""At a run's end, of those figures in its summary that are drawn."""


def sort(names: Collection[str]) -> tuple[dict[Logged, list[str]], list[str]]:
    """What of HISTORY there is, with its names in order; and the names that are in no list."""
    found: dict[Logged, list[str]] = {}
    left = set(names)
    for logged in HISTORY:
        if own := logged.of(left):
            found[logged] = own
            left -= set(own)
    return found, sorted(left)


def history_names(directory: Path) -> set[str]:
    """What a sweep's runs have logged by step, as their directories tell."""
    names: set[str] = set()
    for planned in read_plan(directory)["runs"]:
        run = RunDirectory(directory / planned["run_id"])
        for line in (*run.metrics(), *run.timing()):
            names |= line.keys()
        measured = run.diagnostics()
        for line in measured[:1] + measured[-1:]:
            names |= layer_means(line).keys()
        if measured and run.spectra(measured[-1]["step"]):
            names.add("spectra")
        for line in run.ranks():
            names |= ranks_row(line).keys()
    return names - {"step"}


def summary_names(directory: Path) -> set[str]:
    """The figures that the summary of at least one run has."""
    summaries = [RunDirectory(directory / run["run_id"]).summary() for run in read_plan(directory)["runs"]]
    return {
        name
        for summary in summaries
        for name, value in summary.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }

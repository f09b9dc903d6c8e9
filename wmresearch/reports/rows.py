"""A table's values: rows, each an arm at one setting, and what they were made from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from wmresearch.reports.statistics import Estimate


@dataclass(frozen=True)
class Delta:
    """Loss of a row minus the baseline's, seed by seed, at the same setting (nats per token): `Table.loss` of both."""

    n: int
    """Pairs: seeds finished in both."""
    mean: float | None
    low: float | None
    high: float | None
    p: float | None
    """Of the two-sided paired t test; None below two pairs, without spread, or where a seed of the row diverged."""
    p_holm: float | None
    within: float | None = None
    """p of the two one-sided tests that the mean lies within the sweep's margin, Holm-corrected; None without one."""
    resolvable: float | None = None
    """The difference that so many pairs with this spread show with a chance of 80 %."""


@dataclass(frozen=True)
class Tuning:
    """How the values of the tuned keys were found."""

    chosen: dict[str, Any] | None
    """None while it is not known."""
    edges: tuple[str, ...]
    """Keys whose chosen value is the lowest or highest that was tried."""
    tried: int
    """Settings of the tuned keys that were tried."""
    at_baseline: Estimate
    """The loss that arms are compared by, at the values that the baseline chose."""


@dataclass(frozen=True)
class Reach:
    """When a row's runs come to the final validation loss of the baseline's run with the same seed."""

    n: int
    """Pairs of runs."""
    reached: int
    """Of them, those that come to it."""
    steps: float | None
    """Mean over the pairs, linear between evaluations; None where one does not come to it."""
    flops: float | None


@dataclass(frozen=True)
class Tasks:
    """What finished models do with random symbols. A mean is over all finished runs, or null."""

    recall: Estimate
    """Accuracy of the value after a key, mean over the numbers of pairs."""
    induction: Estimate
    """Accuracy in the second copy."""
    gain: Estimate
    """Nats per token that the second copy is better known than the first."""


@dataclass(frozen=True)
class Row:
    """An arm at one setting. `n` counts the finished runs that the means are over."""

    arm: str
    settings: dict[str, Any]
    n: int
    planned: int
    finished: int
    diverged: int
    failed: int
    flags: tuple[str, ...]
    learning_rate: float | None
    validation_loss: Estimate
    """Nats per token, whole split, last step."""
    test_loss: Estimate
    bits_per_byte: Estimate
    delta: Delta | None
    """None in the baseline's own rows."""
    parameters: int | None
    head_output_parameters: int | None
    head_output_nonzeros: int | None
    """Without those that are held at zero."""
    total_rank: int | None
    """Σ of all heads' ranks at the end, where heads find their ranks. Sizes and costs are then means over seeds."""
    flops_per_token: float | None
    """Training FLOPs, forward and backward, as the compiled program makes them, at the end."""
    training_flops: float | None
    """Of the whole run."""
    saves_compute: bool | None
    """Fewer FLOPs than the baseline at the same setting; None where one of the two is unknown."""
    tokens_per_second: float | None
    """Median over the finished runs."""
    adjusted: dict[str, Any] | None = None
    """What was changed so that the arm spends what the baseline does: key, before, after, budget, off."""
    tuned: Tuning | None = None
    """None where the sweep does not tune."""
    reach: Reach | None = None
    """None where the sweep does not ask."""
    tasks: Tasks | None = None
    """None where no finished run was asked."""

    def to_dict(self) -> dict[str, Any]:
        out = {**asdict(self), "flags": list(self.flags)}
        for key in ("validation_loss", "test_loss", "bits_per_byte"):
            del out[key]["n"]  # the row's own n, or none where the mean is null
        if self.tuned is not None:
            out["tuned"]["edges"] = list(self.tuned.edges)
        return out


@dataclass(frozen=True)
class Table:
    """Rows in the plan's order, and what they were made from."""

    sweep: str
    baseline: str
    rows: tuple[Row, ...]
    manifest: dict[str, Any]
    varied: tuple[str, ...]
    """Keys of the settings that take more than one value, without those that are tuned."""
    loss: Literal["validation_loss", "test_loss"] = "validation_loss"
    """What arms are compared by: where the validation loss chose tuned values, the test loss, if there is one."""
    margin: float | None = None
    """The difference that the sweep states to be none, in nats per token."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: numbers are finite or None."""
        rows = [row.to_dict() for row in self.rows]
        about = {"sweep": self.sweep, "baseline": self.baseline, "loss": self.loss, "margin": self.margin}
        return {**about, "rows": rows, "manifest": self.manifest}

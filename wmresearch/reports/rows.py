"""A table's values: rows, each an arm at one setting, and what they were made from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from wmresearch.reports.statistics import Estimate

Loss = Literal["validation_loss", "test_loss"]


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
    mark: Literal["lowest", "not told apart"] | None = None
    """Whether its mean of the loss that arms are compared by is the lowest, or within the noise of the lowest."""
    sweep: str = ""
    """In a table of several."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What was asked for besides: name → an `Estimate` over the finished runs, or the value of a config's key."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data; with `sweep` where there are several, and `extra` where something was asked for."""
        out = {**asdict(self), "flags": list(self.flags)}
        for key in ("validation_loss", "test_loss", "bits_per_byte"):
            del out[key]["n"]  # the row's own n, or none where the mean is null
        for key in ("sweep", "extra"):
            if not out[key]:
                del out[key]
        if self.tuned is not None:
            out["tuned"]["edges"] = list(self.tuned.edges)
        return out


@dataclass(frozen=True)
class View:
    """What of a table people see, and in which order. Columns are named by their keys (`Column.key`)."""

    columns: tuple[str, ...] = ()
    """None: the usual ones."""
    sort: str = ""
    """A column, from low to high; after a minus sign from high to low; none: the plan's order. Unknown comes last."""
    group: str = ""
    """A column whose equal values stand together."""

    @property
    def keys(self) -> tuple[str, ...]:
        """All columns that it names."""
        return tuple(dict.fromkeys(filter(None, (*self.columns, self.sort.removeprefix("-"), self.group))))


WHOLE = View()
"""The usual columns in the plan's order."""


@dataclass(frozen=True)
class Table:
    """Rows, in the plan's order unless the view says otherwise, and what they were made from."""

    sweep: str
    """Where it has several, their names joined by " + "."""
    baseline: str
    """Empty where several sweeps have several."""
    rows: tuple[Row, ...]
    manifest: dict[str, Any]
    varied: tuple[str, ...]
    """Keys of the settings that take more than one value, without those that are tuned."""
    loss: Loss = "validation_loss"
    """What arms are compared by: where the validation loss chose tuned values, the test loss, if there is one."""
    margin: float | None = None
    """The difference that the sweep states to be none, in nats per token."""
    view: View = WHOLE
    sweeps: int = 1
    starts_of_groups: tuple[int, ...] = ()
    """Numbers of the rows that another group of the view begins at."""

    @property
    def tuned_keys(self) -> tuple[str, ...]:
        """Keys whose values were chosen for each arm."""
        return tuple(dict.fromkeys(key for row in self.rows if row.tuned for key in row.tuned.chosen or ()))

    @property
    def holds_zeros(self) -> bool:
        """Whether some row's head outputs have entries that are held at zero."""
        pairs = [(row.head_output_nonzeros, row.head_output_parameters) for row in self.rows]
        return any(kept not in (None, stored) for kept, stored in pairs)

    @property
    def finds_ranks(self) -> bool:
        """Whether some row's heads find their ranks."""
        return any(row.total_rank is not None for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: numbers are finite or None."""
        rows = [row.to_dict() for row in self.rows]
        about = {"sweep": self.sweep, "baseline": self.baseline, "loss": self.loss, "margin": self.margin}
        return {**about, "rows": rows, "manifest": self.manifest}

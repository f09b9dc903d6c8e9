"""From a sweep file to its runs, each with its id. What a sweep that tunes has to run follows from results so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wmresearch.config import ArmRun, ConfigError, Problem, RunConfig, SweepConfig, load_sweep, run_id
from wmresearch.config.variation import MatchConfig
from wmresearch.data import corpus_digest
from wmresearch.sweeps.algebra import Setting, changed, counterpart
from wmresearch.sweeps.tuning import Grid, Loss, Point, points, search
from wmresearch.training.custom_kind import ask_custom
from wmresearch.training.run_directory import FINAL, RunDirectory

if TYPE_CHECKING:
    from wmresearch.sweeps.budgets import Adjustment, Budgets

Role = Literal["tune", "report"]


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep."""

    run_id: str
    arm: str
    settings: dict[str, Any]
    """What the sweep and the arm vary, and the values of the tuned keys."""
    seed: int
    config: RunConfig
    role: Role = "report"
    adjusted: Adjustment | None = None
    """How the arm was made to spend what the baseline does."""


@dataclass(frozen=True)
class Tuned:
    """What tuning has found for one arm at one setting so far."""

    arm: str
    settings: Setting
    tried: tuple[tuple[Point, Loss], ...]
    """Values, and their mean validation loss over the tuning seeds."""
    chosen: Point | None
    edges: tuple[str, ...]
    """Keys whose best value is the lowest or highest tried."""
    at_baseline: Point | None
    """The baseline's chosen values, at which this arm is reported too where they are others."""


@dataclass(frozen=True)
class Cell:
    """An arm at one setting: all its runs differ in seeds and tuned values only."""

    arm: str
    settings: Setting
    config: RunConfig
    match: MatchConfig
    own: frozenset[str]
    grid: Grid
    """Tuned keys and the values to begin with."""


@dataclass(frozen=True)
class Plan:
    """A sweep and the runs that it needs, as far as results so far tell, in the order arms × settings × seeds."""

    sweep: SweepConfig
    runs: tuple[PlannedRun, ...]
    tuned: tuple[Tuned, ...] = ()
    cells: tuple[Cell, ...] = ()
    maker: RunMaker | None = field(default=None, repr=False, compare=False)


class RunMaker:
    """Makes the runs of cells: their values set, matched to the baseline, named by their id. Each config once."""

    def __init__(self, source: str, baseline: str, cells: Sequence[Cell], report: Callable[[str], None]) -> None:
        self._source, self._report = source, report
        self._baselines = [cell for cell in cells if cell.arm == baseline]
        self._digests: dict[str, str] = {}
        self._made: dict[str, tuple[RunConfig, Adjustment | None]] = {}
        self._budgets: Budgets | None = None

    def baseline_of(self, cell: Cell) -> Cell | None:
        """The baseline at the setting that a cell is compared at."""
        setting = counterpart(cell.settings, [other.settings for other in self._baselines])
        return next((other for other in self._baselines if other.settings == setting), None)

    def make(self, cell: Cell, values: Point, seed: int, role: Role = "report") -> PlannedRun:
        """One run.

        Raises:
            ConfigError: the arm cannot have these values, or cannot be matched.
        """
        key = f"{cell.arm} {cell.settings} {values}"
        if key not in self._made:
            config = changed(cell.config, values) if values else cell.config
            self._made[key] = self._matched(cell, config)
        config, adjusted = self._made[key]
        config = config.model_copy(update={"seed": seed})
        data = config.data.model_dump_json(include={"corpus", "split"})
        if data not in self._digests:
            self._digests[data] = corpus_digest(config.data, self._report)
        identity = run_id(config, self._digests[data])
        return PlannedRun(identity, cell.arm, cell.settings | values, seed, config, role, adjusted)

    def _matched(self, cell: Cell, config: RunConfig) -> tuple[RunConfig, Adjustment | None]:
        baseline = self.baseline_of(cell)
        if cell.match.budget == "none" or baseline is None or baseline is cell:
            return config, None
        from wmresearch.sweeps.budgets import Budgets, CannotMatchError  # JAX, which sweeps without it need not import

        self._budgets = self._budgets or Budgets()
        budget = cell.match.budget
        try:
            return self._budgets.matched(config, baseline.config, budget, cell.match.by, cell.own)
        except CannotMatchError as error:
            found, wanted = (self._budgets.spent(one, budget) for one in (config, baseline.config))
            expected = f"{budget} of {wanted:,.0f}, those of '{baseline.arm}', to within half a percent"
            problem = Problem(self._source, f"arms.{cell.arm}", f"{found:,.0f} {budget}", expected, str(error))
            raise ConfigError([problem]) from None


def make_plan(path: str | Path, overrides: Sequence[str] = (), report: Callable[[str], None] = lambda _: None) -> Plan:
    """The plan of a sweep file without any results. Prepares the corpora, since a run's id holds the corpus' digest.

    Raises:
        ConfigError: the file, its base, an arm or an override is wrong, an arm cannot be matched, or two arms are the
            same run.
    """
    sweep, arm_runs = load_sweep(path, overrides, ask_custom)
    cells = _cells(arm_runs)
    maker = RunMaker(str(path), sweep.baseline, cells, report)
    problems: list[Problem] = []
    runs: list[PlannedRun] = []
    role: Role = "tune" if sweep.tune else "report"
    for cell in cells:
        try:
            for point in points(cell.grid):
                runs += [maker.make(cell, point, seed, role) for seed in sweep.first_seeds]
        except ConfigError as error:
            problems += error.problems
    problems += _doubles(str(path), sweep, runs)
    if problems:
        raise ConfigError(problems)
    plan = Plan(sweep, tuple(runs), (), tuple(cells), maker)
    return extended(plan, _no_result) if sweep.tune else plan


def _no_result(_: PlannedRun) -> Loss:
    return "waiting"


def results_in(directory: Path) -> Callable[[PlannedRun], Loss]:
    """The loss of each run as its directory tells: its validation loss at its last step."""

    def loss(run: PlannedRun) -> Loss:
        summary = RunDirectory(directory / run.run_id).summary()
        state, value = summary.get("state"), summary.get("validation_loss")
        if state == "finished" and value is not None and math.isfinite(value):
            return float(value)
        return math.inf if state in FINAL else "failed" if state == "failed" else "waiting"

    return loss


def extended(plan: Plan, result: Callable[[PlannedRun], Loss]) -> Plan:
    """The plan with all that results ask for: more values to try, then the runs that are reported.

    Depends on the sweep and on results alone, not on the plan's runs so far.
    """
    sweep, maker = plan.sweep, plan.maker
    if sweep.tune is None or maker is None:
        return plan
    runs: list[PlannedRun] = []
    found: list[Tuned] = []
    for group in _groups(plan.cells, maker):
        trials = _Trials(group, sweep, maker, result)
        searches, last = search([cell.grid for cell in group], trials.loss, sweep.tune.extend, trials.allowed)
        baseline = next((s.best for cell, s in zip(group, searches, strict=True) if cell.arm == sweep.baseline), None)
        for index, (cell, one) in enumerate(zip(group, searches, strict=True)):
            for point in points(one.grid):
                runs += trials.runs(index, point)
            other = baseline if baseline != one.best and last and trials.allowed(index, baseline or {}) else None
            for point in [] if one.best is None or not last else [one.best, *([other] if other else [])]:
                runs += [maker.make(cell, point, seed) for seed in sweep.report_seeds]
            tried = tuple((point, trials.loss(index, point)) for point in points(one.grid))
            found.append(Tuned(cell.arm, cell.settings, tried, one.best, one.edges, baseline if last else None))
    order = [(cell.arm, cell.settings) for cell in plan.cells]
    found.sort(key=lambda tuned: order.index((tuned.arm, tuned.settings)))
    return replace(plan, runs=tuple(runs), tuned=tuple(found))


@dataclass
class _Trials:
    """The tuning runs of cells that are tuned together."""

    cells: Sequence[Cell]
    sweep: SweepConfig
    maker: RunMaker
    result: Callable[[PlannedRun], Loss]

    def runs(self, index: int, point: Point) -> list[PlannedRun]:
        return [self.maker.make(self.cells[index], point, seed, "tune") for seed in self.sweep.first_seeds]

    def loss(self, index: int, point: Point) -> Loss:
        """Mean over the tuning seeds. What failed is said once nothing is waited for."""
        losses = [self.result(run) for run in self.runs(index, point)]
        if "waiting" in losses:
            return "waiting"
        if "failed" in losses:
            return "failed"
        return math.fsum(value for value in losses if not isinstance(value, str)) / len(losses)

    def allowed(self, index: int, point: Point) -> bool:
        """Whether an arm can have these values."""
        try:
            self.maker.make(self.cells[index], point, self.sweep.first_seeds[0], "tune")
        except ConfigError:
            return False
        return True


def _cells(runs: Sequence[ArmRun]) -> list[Cell]:
    groups: dict[tuple[str, str], list[ArmRun]] = {}
    for run in runs:
        groups.setdefault((run.arm, str(run.settings)), []).append(run)
    found = []
    for group in groups.values():
        first = group[0]
        grid = {key: list({str(run.tuned[key]): run.tuned[key] for run in group}.values()) for key in first.tuned}
        found.append(Cell(first.arm, first.settings, first.config, first.match, first.own, grid))
    return found


def _groups(cells: Sequence[Cell], maker: RunMaker) -> list[list[Cell]]:
    """Cells that are compared with one baseline, which are tuned together."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        baseline = maker.baseline_of(cell)
        groups.setdefault(str(baseline.settings if baseline else None), []).append(cell)
    return list(groups.values())


def _doubles(source: str, sweep: SweepConfig, runs: Sequence[PlannedRun]) -> Iterator[Problem]:
    """Arms that would be one and the same run: a table would compare a thing with itself."""
    varied = next((name for name in ("grid", "zip", "list", "random", "tune") if getattr(sweep, name)), "arms")
    first: dict[str, PlannedRun] = {}
    problems: dict[tuple[str, str], Problem] = {}
    for run in runs:
        other = first.setdefault(run.run_id, run)
        if other is run:
            continue
        if other.arm != run.arm:
            text = f"an arm that differs from '{other.arm}' in what changes the result"
            problems[run.arm, other.arm] = Problem(source, f"arms.{run.arm}", "", text)
        else:
            text = "settings that differ in what changes the result"
            problems[run.arm, varied] = Problem(source, varied, f"{other.settings} and {run.settings}", text)
    yield from problems.values()

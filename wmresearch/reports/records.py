"""Reads a sweep's directory: the plan, and what each planned run left behind. Decides which runs may be counted.

The plan is the truth about names: a run belongs to the row that the plan puts its id in. A run's own files are
believed only where they agree with that; what they contradict is not counted, and why is said.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from wmresearch.config.problems import ConfigError, Problem

PLAN, SUMMARY, MANIFEST = "sweep.json", "summary.json", "manifest.json"


class ReportError(ConfigError):
    """No report can be made of this directory. Says where, what was found, what was expected and what to do next."""


class _File(BaseModel):
    """Strict about the types of the keys that a table needs, indifferent to others."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


Number = Annotated[float | None, AfterValidator(lambda value: value if _finite(value) else None)]
"""NaN and infinity are no numbers: they read as null."""


class Adjusted(_File):
    """What was changed in an arm so that it spends what the baseline does."""

    key: str
    before: int
    after: int
    budget: str
    off: float


class PlannedRun(_File):
    run_id: str
    arm: str
    settings: dict[str, Any]
    seed: int
    role: str = "report"
    adjusted: Adjusted | None = None


class Tried(_File):
    """Values of the tuned keys, and their mean validation loss over the tuning seeds."""

    values: dict[str, Any]
    loss: Number = None


class TunedArm(_File):
    """What tuning found for an arm at one setting so far."""

    arm: str
    settings: dict[str, Any]
    tried: list[Tried]
    chosen: dict[str, Any] | None = None
    edges: list[str] = []
    at_baseline: dict[str, Any] | None = None
    """The values that the baseline chose."""


class Plan(_File):
    """`sweep.json`: every run that the sweep means to make, as far as it knows, in order."""

    name: str
    baseline: str
    arms: list[str]
    runs: list[PlannedRun]
    reach: bool = False
    margin: Number = None
    tuned: list[TunedArm] = []


class Summary(_File):
    """`summary.json`: what came out of one run. Null where it has not come that far."""

    run_id: str
    state: str
    sweep: str | None = None
    arm: str | None = None
    role: str | None = None
    settings: dict[str, Any] | None = None
    seed: int | None = None
    reason: str | None = None
    step: int | None = None
    validation_loss: float | None = None
    """May be NaN or infinite, which tells that the run diverged."""
    test_loss: Number = None
    bits_per_byte: Number = None
    recall_accuracy: Number = None
    induction_accuracy: Number = None
    induction_gain: Number = None
    learning_rate: Number = None
    corpus_digest: str | None = None
    parameters: int | None = None
    head_output_parameters: int | None = None
    head_output_nonzeros: int | None = None
    total_rank: int | None = None
    masked_dense: bool | None = None
    flops_per_token: Number = None
    training_flops: Number = None
    tokens_per_second: Number = None


class RunManifest(_File):
    """`manifest.json`: what one run was made from."""

    run_id: str
    commit: str | None = None
    dirty: bool | None = None
    python: str | None = None
    packages: dict[str, str] | None = None
    device: Any = None
    corpus_digest: str | None = None
    corpus: Any = None
    xla_flags: str | None = None


F = TypeVar("F", bound=_File)


@dataclass(frozen=True)
class Record:
    """A planned run and what is known of it. `state`: the summary's, or `not started`, or `unusable` with a reason."""

    planned: PlannedRun
    state: str
    reason: str = ""
    summary: Summary | None = None
    manifest: RunManifest | None = None

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    @property
    def digests(self) -> set[str]:
        """Corpus digests that the run's files name: one, or none where it did not come that far."""
        return {file.corpus_digest for file in (self.summary, self.manifest) if file and file.corpus_digest}


def read_plan(directory: Path) -> Plan:
    """The plan in a sweep's directory.

    Raises:
        ReportError: there is none, it cannot be read, or it contradicts itself.
    """
    path = directory / PLAN
    if not path.is_file():
        hint = "give the directory that `wm sweep` wrote to (runs/<name of the sweep>)"
        if (directory / SUMMARY).is_file():
            hint = f"this is the directory of one run: give the sweep's, {directory.resolve().parent}"
        found = "no such file" if directory.is_dir() else "no such directory"
        _refuse(path, "", found, "the plan of a sweep", hint)
    try:
        plan = _read(path, Plan)
    except _UnreadableError as error:
        _refuse(
            path, "", str(error), "a plan as `wm sweep` writes it", "start the sweep again: it writes the plan anew"
        )
    again = "correct the sweep file and start the sweep again: it writes the plan anew"
    for name in dict.fromkeys([plan.baseline, *(run.arm for run in plan.runs)]):
        if name not in plan.arms:
            _refuse(path, "arms", ", ".join(plan.arms), f"the arm '{name}' among them", again)
    seen: dict[tuple[str, str, int], PlannedRun] = {}
    rows: dict[tuple[str, str, str], PlannedRun] = {}
    for run in plan.runs:
        at = row_key(run)
        if (*at, run.seed) in seen:
            _refuse(path, "runs", f"{run.arm}, seed {run.seed} twice at one setting", "each seed of a row once", again)
        if (*at, run.run_id) in rows:
            _refuse(path, "runs", f"run {run.run_id} twice in the row of '{run.arm}'", "a run for each seed", again)
        seen[(*at, run.seed)] = rows[(*at, run.run_id)] = run
    return plan


def row_key(run: PlannedRun) -> tuple[str, str]:
    """Arm and setting of the grid: runs with the same key differ in their seed only."""
    return run.arm, setting_key(run.settings)


def setting_key(settings: dict[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


def read_record(directory: Path, planned: PlannedRun) -> Record:
    """What a planned run left in its folder, checked against the plan."""
    path = directory / planned.run_id / SUMMARY
    try:
        summary = _read(path, Summary)
    except FileNotFoundError:
        return Record(planned, "not started")
    except _UnreadableError as error:
        return Record(planned, "unusable", f"{SUMMARY}: {error}")
    contradiction = _contradiction(planned, summary)
    if contradiction:
        return Record(planned, "unusable", contradiction)
    try:
        found = _read(directory / planned.run_id / MANIFEST, RunManifest)
        manifest = found if found.run_id == planned.run_id else None
    except (FileNotFoundError, _UnreadableError):
        manifest = None
    state, reason = summary.state, summary.reason or ""
    if state == "finished" and not _finite(summary.validation_loss):
        if summary.validation_loss is None:
            return Record(planned, "unusable", f"{SUMMARY}: finished, but without a validation_loss")
        state, reason = "diverged", f"finished with a validation loss of {summary.validation_loss}"
    return Record(planned, state, reason, summary, manifest)


def unplanned(directory: Path, plan: Plan) -> list[str]:
    """Names of run directories that the plan does not know: left from an earlier version of the sweep, or copied in."""
    known = {run.run_id for run in plan.runs}
    return sorted(path.parent.name for path in directory.glob(f"*/{SUMMARY}") if path.parent.name not in known)


def _contradiction(planned: PlannedRun, summary: Summary) -> str:
    """Why a summary cannot be that of the planned run. Names (arm, sweep) may change between two starts of a sweep."""
    expected: dict[str, tuple[Any, Any]] = {
        "run_id": (summary.run_id, planned.run_id),
        "seed": (summary.seed, planned.seed),
        "role": (summary.role, planned.role),
    }
    for key, value in planned.settings.items():
        expected[f"settings.{key}"] = ((summary.settings or {}).get(key), value)
    for key, (found, planned_value) in expected.items():
        if found is not None and found != planned_value:
            return f"{SUMMARY}: {key} is {json.dumps(found)}, the plan says {json.dumps(planned_value)}"
    return ""


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


class _UnreadableError(Exception):
    """A file that is there and cannot be used."""


def _read(path: Path, model: type[F]) -> F:
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _UnreadableError(error.strerror or type(error).__name__) from None
    except (ValueError, RecursionError):
        raise _UnreadableError("not JSON (half-written or damaged)") from None
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "content"
        raise _UnreadableError(f"{where}: {first['msg']}") from None


def _refuse(source: Path, path: str, found: str, expected: str, hint: str) -> NoReturn:
    if not path:  # nothing at a key of the file, but the file itself
        found, expected = "", f"{expected}, found {found}"
    raise ReportError([Problem(str(source), path, found, expected, hint)])

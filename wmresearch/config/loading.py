"""Reads run and sweep files, with overrides on top, into configs; or says everything that is wrong with them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wmresearch.config.custom_file import AskCustom, with_file
from wmresearch.config.data import TextFiles
from wmresearch.config.draft import (
    COMMAND_LINE,
    Draft,
    Origin,
    find_file,
    missing_file,
    parse_override,
    parse_overrides,
    read_draft,
)
from wmresearch.config.found_ranks import needs_ranks, with_found_ranks
from wmresearch.config.head_output import CustomConfig
from wmresearch.config.presets import find_config
from wmresearch.config.problems import ConfigError, Problem, nearest
from wmresearch.config.run import RunConfig
from wmresearch.config.sweep import SweepConfig
from wmresearch.config.validation import Examined, Place, examine, shown, validate

__all__ = ["COMMAND_LINE", "ArmRun", "grid_points", "load_run", "load_sweep", "parse_override", "parse_run"]


@dataclass(frozen=True)
class ArmRun:
    """One run of a sweep before it has an id: arm, setting of the grid, seed, and the whole config."""

    arm: str
    settings: dict[str, Any]
    seed: int
    config: RunConfig


def _not_asked(config: RunConfig, place: Place) -> list[Problem]:
    del config, place
    return []


def load_run(
    path_or_preset: str | Path, overrides: Sequence[str] = (), ask_custom: AskCustom = _not_asked
) -> RunConfig:
    """The run config in a YAML file (or preset), with `key=value` overrides on top.

    `ask_custom` says what is wrong with a head output of the user's own, which this room does not run.

    Raises:
        ConfigError: with every problem in file and overrides.
    """
    draft = read_draft(find_config(path_or_preset))
    if "arms" in draft.data and "model" not in draft.data:
        raise ConfigError([Problem(draft.source, "", "", "a run config, and this is a sweep", "try `wm sweep`")])
    problems: list[Problem] = []
    for key, value in parse_overrides(overrides, problems):
        draft.set(key, value, Origin(COMMAND_LINE))
    config, found = _examined(draft, ask_custom)
    if problems or found or config is None:
        raise ConfigError([*problems, *found])
    return config


def parse_run(data: Any, source: str) -> RunConfig:
    """A run config from plain data, as kept in a run directory (its paths are absolute).

    Raises:
        ConfigError: with every problem in the data.
    """
    draft = Draft({}, source)
    config = validate(RunConfig, data, draft.place)
    own = config.model.head_output
    problems: list[Problem] = []
    if isinstance(own, CustomConfig) and own.sha256 is None:
        config, problems = with_file(config, draft)
    elif needs_ranks(config):
        config, problems = with_found_ranks(config, draft)
    if problems:
        raise ConfigError(problems)
    return config


def load_sweep(
    path_or_name: str | Path, overrides: Sequence[str] = (), ask_custom: AskCustom = _not_asked
) -> tuple[SweepConfig, list[ArmRun]]:
    """A sweep file and its runs: arms × grid × seeds, in that order. `ask_custom` as in `load_run`.

    An override whose first key is one of the sweep's own (`seeds=[0,1]`, `grid.optimizer.learning_rate=[1e-3]`)
    changes the sweep; any other changes the base config.

    Raises:
        ConfigError: with every problem in the sweep file, the base config, every arm and the overrides.
    """
    draft = read_draft(find_config(path_or_name, sweeps=True))
    if "model" in draft.data and "arms" not in draft.data:
        raise ConfigError([Problem(draft.source, "", "", "a sweep, and this is a run config", "try `wm train`")])
    problems: list[Problem] = []
    base_overrides = _apply_to_sweep(draft, parse_overrides(overrides, problems), problems)
    examined = examine(SweepConfig, draft.data, draft.place)
    problems += examined.problems
    sweep = examined.config
    base: Draft | None = None
    if sweep is not None and examined.is_sound("base"):
        try:
            base = _base_draft(draft, sweep.base)
        except ConfigError as error:
            problems += error.problems
    runs: list[ArmRun] = []
    if sweep is not None:
        problems += _conflicts(sweep, draft, base_overrides)
        if base is not None:
            for key, value in base_overrides.items():
                base.set(key, value, Origin(COMMAND_LINE))
            runs = list(_runs(sweep, draft, examined, base, ask_custom, problems))
    if problems or sweep is None:
        raise ConfigError(problems)
    return sweep, runs


def grid_points(sweep: SweepConfig) -> list[dict[str, Any]]:
    """Every combination of the grid's values; one empty one where there is no grid."""
    grid = sweep.grid or {}
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _examined(draft: Draft, ask_custom: AskCustom) -> tuple[RunConfig | None, list[Problem]]:
    """The config of a draft, the paths in it made absolute, and everything that is wrong with it."""
    examined = examine(RunConfig, draft.data, draft.place)
    config, problems = examined.config, examined.problems
    if config is None:
        return None, problems
    config, missing = _with_corpus(config, draft, examined)
    problems = [*problems, *missing]
    if isinstance(config.model.head_output, CustomConfig) and examined.is_sound("model", "head_output", "file"):
        config, wrong = with_file(config, draft)
        if not wrong and examined.is_sound("model"):
            wrong = ask_custom(config, draft.place)
        problems += wrong
    if needs_ranks(config) and examined.is_sound("model"):
        config, wrong = with_found_ranks(config, draft)
        problems += wrong
    return config, problems


def _with_corpus(config: RunConfig, draft: Draft, examined: Examined[RunConfig]) -> tuple[RunConfig, list[Problem]]:
    """The config with its text files' paths made absolute, and those at which there is nothing."""
    corpus = config.data.corpus
    if not isinstance(corpus, TextFiles):
        return config, []
    found: dict[str, str] = {}
    missing: list[Problem] = []
    for name in ("path", "train", "validation", "test"):
        text, path = getattr(corpus, name), f"data.corpus.{name}"
        if text is None or not examined.is_sound(*path.split(".")):
            continue
        found[name], exists = find_file(draft, path, text)
        if not exists:
            missing.append(missing_file(draft, path, text, "a file, folder or glob that exists"))
    data = config.data.model_copy(update={"corpus": corpus.model_copy(update=found)})
    return config.model_copy(update={"data": data}), missing


def _apply_to_sweep(draft: Draft, overrides: list[tuple[str, Any]], problems: list[Problem]) -> dict[str, Any]:
    """Applies the overrides that are the sweep's own; the others are returned. Keys in grid and arms hold dots."""
    rest: dict[str, Any] = {}
    for key, value in overrides:
        first, _, inner = key.partition(".")
        inside = draft.data.get(first)
        if first in SweepConfig.model_fields:
            if first in ("grid", "arms") and inner:
                target = draft.data[first] = inside if isinstance(inside, dict) else {}
                arm = max((name for name in target if inner.startswith(name + ".")), key=len, default="")
                if first == "arms" and arm and isinstance(target[arm], dict):
                    target, inner = target[arm], inner[len(arm) + 1 :]
                target[inner] = value
                draft.set_by[key] = Origin(COMMAND_LINE)
            elif first in ("grid", "arms"):  # as a whole: its keys hold dots, so there is nothing to merge by
                draft.data[first] = value
                draft.set_by[key] = Origin(COMMAND_LINE)
            else:
                draft.set(key, value, Origin(COMMAND_LINE))
        elif first not in RunConfig.model_fields:
            names = [*SweepConfig.model_fields, *RunConfig.model_fields]
            problems.append(
                Problem(COMMAND_LINE, key, shown(value), "a key of the sweep or of its base", nearest(first, names))
            )
        elif first == "seed":
            problems.append(Problem(COMMAND_LINE, key, shown(value), "seeds=[…]: a sweep lists its seeds"))
        else:
            rest[key] = value
    return rest


def _base_draft(draft: Draft, text: str) -> Draft:
    path, _ = find_file(draft, "base", text)
    if not Path(path).is_file():
        raise ConfigError([missing_file(draft, "base", text, "the path of a run config, from this file")])
    return read_draft(Path(path))


def _runs(
    sweep: SweepConfig,
    draft: Draft,
    examined: Examined[SweepConfig],
    base: Draft,
    ask_custom: AskCustom,
    problems: list[Problem],
) -> Iterator[ArmRun]:
    """The runs, as far as they can be made; what is wrong with them goes to `problems`."""
    grid = {key: values for key, values in (sweep.grid or {}).items() if examined.is_sound("grid", key)}
    if any(problem.path == "grid" for problem in examined.problems):
        grid = {}  # not a grid, or one too large to go over
    arms = {arm: changes for arm, changes in sweep.arms.items() if examined.is_sound("arms", arm)}
    for (arm, changes), point in itertools.product(
        arms.items(), itertools.product(*(enumerate(v) for v in grid.values()))
    ):
        changed = base.copy()
        for key, value in changes.items():
            source, place = draft.place(f"arms.{arm}.{key}")
            changed.set(key, value, Origin(source, place.removesuffix(key)))
        for key, (index, value) in zip(grid, point, strict=True):
            source, place = draft.place(f"grid.{key}")
            changed.set(key, value, Origin(source, place.removesuffix(key), f".{index}"))
        changed.data["seed"] = sweep.seeds[0]
        config, found = _examined(changed, ask_custom)
        problems.extend(found)
        if config is None or found:
            continue
        settings = {key: value for key, (_, value) in zip(grid, point, strict=True)}
        for seed in sweep.seeds:
            yield ArmRun(arm, settings, seed, config.model_copy(update={"seed": seed}))


def _conflicts(sweep: SweepConfig, draft: Draft, overridden: dict[str, Any]) -> list[Problem]:
    """Keys that two of grid, an arm, the sweep itself and the command line set: one of them would be lost."""
    problems: list[Problem] = []

    def add(path: str, expected: str, value: Any) -> None:
        problems.append(Problem(*draft.place(path), shown(value), expected))

    def overlapping(keys: Any, key: str) -> list[str]:
        return [other for other in keys if other == key or other.startswith(key + ".") or key.startswith(other + ".")]

    grid = sweep.grid or {}
    for key, values in grid.items():
        if overlapping(["seed"], key):
            add(f"grid.{key}", "seeds: […] beside the grid", values)
        for other in overlapping([k for k in grid if k != key], key):
            add(f"grid.{key}", f"a key apart from the grid's {other}: one of the two would be lost", values)
        for other in overlapping(overridden, key):
            expected = f"grid.{key}=[…]: the sweep's grid sets this key"
            problems.append(Problem(COMMAND_LINE, other, shown(overridden[other]), expected))
    for arm, changes in sweep.arms.items():
        for key, value in changes.items():
            if overlapping(["seed"], key):
                add(f"arms.{arm}.{key}", "seeds: […] beside the arms", value)
            for other in overlapping(grid, key):
                add(f"arms.{arm}.{key}", f"a key that the grid does not set ({other})", value)
            for other in overlapping(overridden, key):
                expected = f"a key that no arm sets: arm '{arm}' sets {key}, so this would be lost"
                problems.append(Problem(COMMAND_LINE, other, shown(overridden[other]), expected))
    return problems

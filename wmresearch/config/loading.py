"""Reads run and sweep files, applies dotted overrides, and keeps track of where each value came from."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wmresearch.config import yaml_text
from wmresearch.config.data import TextFiles
from wmresearch.config.presets import find_config
from wmresearch.config.problems import ConfigError, Problem, nearest
from wmresearch.config.run import RunConfig
from wmresearch.config.sweep import SweepConfig
from wmresearch.config.validation import shown, validate

COMMAND_LINE = "command line"


@dataclass
class _Draft:
    """Plain data of a run config, and for each dotted path that was set after the file was read, by whom."""

    data: dict[str, Any]
    source: str
    set_by: dict[str, tuple[str, str]] = field(default_factory=dict)

    def set(self, path: str, value: Any, source: str, shown_path: str) -> None:
        """Sets a dotted key. Mappings merge key by key, except those with a `kind`, which replace what was there."""
        keys = path.split(".")
        target = self.data
        for key in keys[:-1]:
            if not isinstance(target.get(key), dict):
                target[key] = {"kind": target[key]} if isinstance(target.get(key), str) else {}
            target = target[key]
        last = keys[-1]
        old = target.get(last)
        if last == "kind" and old != value:
            target.clear()  # the other keys belonged to the old kind
        if isinstance(value, dict) and isinstance(old, dict) and "kind" not in value:
            for key, item in value.items():
                self.set(f"{path}.{key}", item, source, f"{shown_path}.{key}")
            return
        target[last] = copy.deepcopy(value)
        self.set_by[path] = (source, shown_path)

    def place(self, path: str) -> tuple[str, str]:
        """Where the value at a dotted path came from: source, and its path there."""
        best = max((p for p in self.set_by if path == p or path.startswith(p + ".")), key=len, default=None)
        if best is None:
            return self.source, path
        source, shown_path = self.set_by[best]
        return source, shown_path + path[len(best) :]


def parse_override(text: str) -> tuple[str, Any]:
    """`key.path=value` → (path, value), the value read as YAML.

    Raises:
        ConfigError: there is no `=`, or the value is no YAML.
    """
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not path or not all(path.split(".")):
        raise ConfigError([Problem(COMMAND_LINE, "", text, "key=value, for example optimizer.learning_rate=3e-3")])
    return path, yaml_text.parse(value, f"{COMMAND_LINE}: {path}")


def _parse_overrides(texts: Iterable[str], problems: list[Problem]) -> list[tuple[str, Any]]:
    parsed: list[tuple[str, Any]] = []
    for text in texts:
        try:
            parsed.append(parse_override(text))
        except ConfigError as error:
            problems.extend(error.problems)
    # a change of kind empties its mapping, so it goes before the keys of the new kind
    return sorted(parsed, key=lambda item: not item[0].endswith(".kind"))


def load_run(path_or_preset: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The run config in a YAML file (or preset), with `key=value` overrides on top.

    Raises:
        ConfigError: with every problem in file and overrides.
    """
    path = find_config(path_or_preset)
    draft = _draft(path)
    problems: list[Problem] = []
    for key, value in _parse_overrides(overrides, problems):
        draft.set(key, value, COMMAND_LINE, key)
    return _finish(draft, path.parent, problems)


def parse_run(data: Any, source: str) -> RunConfig:
    """A run config from plain data, as kept in a run directory (its paths are absolute)."""
    return validate(RunConfig, data, _Draft(data, source).place)


def _draft(path: Path) -> _Draft:
    data = yaml_text.read(path)
    if not isinstance(data, dict):
        raise ConfigError([Problem(str(path), "", shown(data), "a mapping of keys to values")])
    return _Draft(data, str(path))


def _finish(draft: _Draft, folder: Path, problems: list[Problem]) -> RunConfig:
    config: RunConfig | None = None
    try:
        config = validate(RunConfig, draft.data, draft.place)
        config, missing = _with_found_files(config, draft, folder)
        problems = [*problems, *missing]
    except ConfigError as error:
        problems = [*problems, *error.problems]
    if problems or config is None:
        raise ConfigError(problems)
    return config


def _with_found_files(config: RunConfig, draft: _Draft, folder: Path) -> tuple[RunConfig, list[Problem]]:
    """Makes a text corpus' paths absolute: from the config file's folder, or from here if given on the command line."""
    corpus = config.data.corpus
    if not isinstance(corpus, TextFiles):
        return config, []
    found: dict[str, str] = {}
    problems: list[Problem] = []
    for name in ("path", "train", "validation", "test"):
        text = getattr(corpus, name)
        if text is None:
            continue
        source, shown_path = draft.place(f"data.corpus.{name}")
        start = Path.cwd() if source == COMMAND_LINE else folder
        absolute = start / Path(text).expanduser()
        found[name] = str(absolute.absolute())
        is_glob = any(char in text for char in "*?[")
        if not absolute.exists() and not (is_glob and next(iter(start.glob(text)), None) if not Path(text).is_absolute()
                                          else is_glob):
            siblings = [p.name for p in absolute.parent.iterdir()] if absolute.parent.is_dir() else []
            hint = f"looked at {absolute}" + (f"; {nearest(absolute.name, siblings)}" if siblings[:20] else "")
            problems.append(Problem(source, shown_path, text, "a file, folder or glob that exists", hint))
    data = config.data.model_copy(update={"corpus": corpus.model_copy(update=found)})
    return config.model_copy(update={"data": data}), problems


@dataclass(frozen=True)
class ArmRun:
    """One run of a sweep before it has an id: arm, setting of the grid, seed, and the whole config."""

    arm: str
    settings: dict[str, Any]
    seed: int
    config: RunConfig


def load_sweep(path_or_name: str | Path, overrides: Sequence[str] = ()) -> tuple[SweepConfig, list[ArmRun]]:
    """A sweep file and its runs: arms × grid × seeds, in that order.

    An override whose first key is one of the sweep's own (`seeds=[0,1]`, `grid.optimizer.learning_rate=[1e-3]`)
    changes the sweep; any other changes the base config.

    Raises:
        ConfigError: with every problem in the sweep file, the base config, every arm and the overrides.
    """
    path = find_config(path_or_name)
    sweep_draft = _draft(path)
    problems: list[Problem] = []
    base_overrides: list[tuple[str, Any]] = []
    for key, value in _parse_overrides(overrides, problems):
        first, _, rest = key.partition(".")
        if first not in SweepConfig.model_fields:
            base_overrides.append((key, value))
        elif first == "grid" and rest:
            grid = sweep_draft.data.get("grid")
            sweep_draft.data["grid"] = (grid if isinstance(grid, dict) else {}) | {rest: value}
            sweep_draft.set_by[key] = (COMMAND_LINE, key)
        else:
            sweep_draft.set(key, value, COMMAND_LINE, key)
    sweep: SweepConfig | None = None
    try:
        sweep = validate(SweepConfig, sweep_draft.data, sweep_draft.place)
        base_path = _base_path(sweep, sweep_draft, path)
        base = _draft(base_path)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    for key, value in base_overrides:
        if key == "seed":
            problems.append(Problem(COMMAND_LINE, key, shown(value), "seeds=[…]: a sweep lists its seeds"))
        base.set(key, value, COMMAND_LINE, key)
    problems += _conflicts(sweep, [key for key, _ in base_overrides], str(path))
    runs: list[ArmRun] = []
    for arm, changes in sweep.arms.items():
        for settings in grid_points(sweep):
            draft = copy.deepcopy(base)
            for key, value in changes.items():
                draft.set(key, value, str(path), f"arms.{arm}.{key}")
            for key, value in settings.items():
                draft.set(key, value, str(path), f"grid.{key}")
            draft.data["seed"] = sweep.seeds[0]
            try:
                config = _finish(draft, base_path.parent, [])
            except ConfigError as error:
                problems.extend(error.problems)
                continue
            runs += [ArmRun(arm, settings, seed, config.model_copy(update={"seed": seed})) for seed in sweep.seeds]
    if problems:
        raise ConfigError(problems)
    return sweep, runs


def grid_points(sweep: SweepConfig) -> list[dict[str, Any]]:
    """Every combination of the grid's values; one empty one where there is no grid."""
    grid = sweep.grid or {}
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _base_path(sweep: SweepConfig, draft: _Draft, path: Path) -> Path:
    source, shown_path = draft.place("base")
    folder = Path.cwd() if source == COMMAND_LINE else path.parent
    base = folder / Path(sweep.base).expanduser()
    if not base.is_file():
        siblings = [p.name for p in base.parent.glob("*.yaml")] if base.parent.is_dir() else []
        hint = f"looked at {base}" + (f"; {nearest(base.name, siblings)}" if siblings else "")
        raise ConfigError([Problem(source, shown_path, sweep.base, "the path of a run config, from this file", hint)])
    return base


def _conflicts(sweep: SweepConfig, overridden: list[str], source: str) -> list[Problem]:
    """Keys that two of grid, an arm, the sweep itself and the command line set: one of them would be lost."""
    problems: list[Problem] = []
    overlap = lambda a, b: a == b or a.startswith(b + ".") or b.startswith(a + ".")  # noqa: E731
    for key in sweep.grid or {}:
        for other in (k for k in overridden if overlap(k, key)):
            problems.append(Problem(COMMAND_LINE, other, "", f"grid.{key}=[…]: the sweep's grid sets this key"))
        if overlap(key, "seed"):
            problems.append(Problem(source, f"grid.{key}", "", "seeds: […] beside the grid"))
    for arm, changes in sweep.arms.items():
        for key in changes:
            if overlap(key, "seed"):
                problems.append(Problem(source, f"arms.{arm}.{key}", "", "seeds: […] beside the arms"))
            for other in (k for k in sweep.grid or {} if overlap(k, key)):
                problems.append(Problem(source, f"arms.{arm}.{key}", "", f"a key that the grid does not set ({other})"))
            for other in (k for k in overridden if overlap(k, key)):
                expected = f"a key that no arm sets: arm '{arm}' sets {key}, so this would be lost"
                problems.append(Problem(COMMAND_LINE, other, "", expected))
    return problems

"""A sweep as W&B sweeps, for those who steer from W&B: its agents run `wm train`, one W&B sweep for each arm."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wmresearch.config import RunConfig, load_run, yaml_text
from wmresearch.config.presets import find_config
from wmresearch.sweeps.plan import Plan, PlannedRun
from wmresearch.sweeps.store import settings_text
from wmresearch.training.files import write_atomically


def wandb_sweeps(plan: Plan, base: RunConfig, base_file: str) -> dict[str, dict[str, Any]]:
    """Name → W&B sweep config. Together their grids are the plan's runs, each once.

    What the runs of an arm have in common stands in the command, as overrides of the base; what they differ in, seeds
    and settings, is W&B's grid. An arm whose runs are no grid has a W&B sweep for each of its settings.
    """
    found: dict[str, dict[str, Any]] = {}
    for runs in _groups(plan.runs, lambda run: (run.arm, run.role)):
        parts = [runs] if _is_grid(runs, base) else _groups(runs, lambda run: json.dumps(run.settings))
        for part in parts:
            words = [part[0].arm, *(["tune"] if part[0].role == "tune" else [])]
            words += [settings_text(part[0].settings)] if len(parts) > 1 else []
            found[" ".join(words)] = _one(plan.sweep.name, " ".join(words), part, base, base_file)
    return found


def _one(sweep: str, name: str, runs: Sequence[PlannedRun], base: RunConfig, base_file: str) -> dict[str, Any]:
    shared, varied = _split(runs, base)
    tracking = runs[0].config.tracking.wandb
    return {
        "name": f"{sweep}: {name}",
        "project": tracking.project,
        **({"entity": tracking.entity} if tracking.entity else {}),
        "program": "wm",
        "method": "grid",
        "metric": {"name": "validation_loss", "goal": "minimize"},
        "parameters": {key: {"values": [_parameter(value) for value in values]} for key, values in varied.items()},
        "command": [
            "${env}",
            f"WANDB_RUN_GROUP={sweep}",
            "wm",
            "train",
            base_file,
            *(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in shared.items()),
            "${args_no_hyphens}",
        ],
    }


def _groups(runs: Sequence[PlannedRun], key: Any) -> list[list[PlannedRun]]:
    groups: dict[Any, list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.values())


def _is_grid(runs: Sequence[PlannedRun], base: RunConfig) -> bool:
    return math.prod(len(values) for values in _split(runs, base)[1].values()) == len(runs)


def _split(runs: Sequence[PlannedRun], base: RunConfig) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """What all runs change in the base alike, and key → the values of what they differ in (and of the seed)."""
    old = base.model_dump(mode="json")
    changes = [dict(_changes(old, run.config.model_dump(mode="json"))) for run in runs]
    shared: dict[str, Any] = {}
    varied: dict[str, list[Any]] = {}
    for key in dict.fromkeys(itertools.chain(["seed"], *changes)):
        values = [change[key] if key in change else _at(old, key) for change in changes]
        different = [value for index, value in enumerate(values) if value not in values[:index]]
        if len(different) > 1 or key == "seed":
            varied[key] = different
        else:
            shared[key] = different[0]
    return shared, varied


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key → value of what differs; a mapping of another kind as a whole."""
    for key, value in new.items():
        other = old.get(key)
        if isinstance(value, dict) and isinstance(other, dict) and value.get("kind") == other.get("kind"):
            yield from _changes(other, value, f"{before}{key}.")
        elif value != other:
            yield before + key, value


def _at(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data[key]
    return data


def _parameter(value: Any) -> Any:
    """A value that W&B's agent, which writes `str(value)`, hands over unchanged."""
    unchanged = isinstance(value, int | float | str) and yaml_text.parse(str(value), "") == value
    return value if unchanged else json.dumps(value, ensure_ascii=False)


def export_to_wandb(plan: Plan, sweep_file: str, directory: Path) -> str:
    """Writes a file for each into the folder wandb_sweeps/ of a directory, and says what to do with them.

    Raises:
        ConfigError: the base is no whole run config without the arms' changes.
    """
    base_file = os.path.normpath(find_config(sweep_file, sweeps=True).parent / plan.sweep.base)
    folder = directory / "wandb_sweeps"
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for index, (name, config) in enumerate(wandb_sweeps(plan, load_run(base_file), base_file).items()):
        file = folder / f"{index:02d}_{re.sub('[^A-Za-z0-9.=-]+', '_', name).strip('_')[:80]}.yaml"
        write_atomically(file, yaml_text.write(config))
        lines.append(f"wandb sweep {shlex.quote(str(file))}")
    return "\n".join(
        [*lines, "then, here and as often as there are machines, the wandb agent command that it prints", ""]
    )

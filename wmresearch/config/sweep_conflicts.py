"""Keys that two of a sweep's parts set: one of the two would be lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wmresearch.config.draft import COMMAND_LINE, Draft
from wmresearch.config.expansion import Block, Factor, overlap
from wmresearch.config.problems import Problem
from wmresearch.config.sweep import SweepConfig
from wmresearch.config.validation import shown


def conflicts(
    sweep: SweepConfig,
    factors: Sequence[Factor],
    arms: Mapping[str, Block],
    draft: Draft,
    overridden: Mapping[str, Any],
) -> list[Problem]:
    """Keys that two of what varies, an arm, tuning, the sweep itself and the command line set."""
    found: list[Problem] = []
    tuned = {key: f"tune.keys.{key}" for key in (sweep.tune.keys if sweep.tune else {})}
    shared = [(factor.name, factor.keys()) for factor in factors] + ([("tune", tuned)] if tuned else [])

    def add(path: str, expected: str) -> None:
        found.append(Problem(*draft.place(path), shown(_at(draft.data, path)), expected))

    _among(shared, add)
    for name, keys in shared:
        for key, path in keys.items():
            if overlap(key, "seed"):
                add(path, f"seeds: […] beside the {name}")
            for other in _overlapping(overridden, key):
                expected = f"{path}=[…]: the sweep's {name} sets this key"
                found.append(Problem(COMMAND_LINE, other, shown(overridden[other]), expected))
    for arm, block in arms.items():
        own = [(factor.name, factor.keys()) for factor in block.factors]
        _among(own, add)
        fixed = {value.key: value.path for value in block.fixed}
        for key, path in [*fixed.items(), *((key, path) for _, keys in own for key, path in keys.items())]:
            if overlap(key, "seed"):
                add(path, "seeds: […] beside the arms")
            for name, keys in shared:
                for other in _overlapping(keys, key):
                    add(path, f"a key that the {name} does not set ({other})")
            for other in _overlapping(overridden, key):
                expected = f"a key that no arm sets: arm '{arm}' sets {key}, so this would be lost"
                found.append(Problem(COMMAND_LINE, other, shown(overridden[other]), expected))
        for _, keys in own:
            for key, path in keys.items():
                for other in _overlapping(fixed, key):
                    add(path, f"a key apart from {other}, which the arm sets: one of the two would be lost")
    baseline = arms.get(sweep.baseline)
    if baseline is not None and baseline.factors:
        found.append(
            Problem(
                *draft.place(f"arms.{sweep.baseline}"),
                "",
                "a baseline without settings of its own: others are compared with it",
                "what varies for every arm stands beside the arms",
            )
        )
    return found


def _among(parts: Sequence[tuple[str, Mapping[str, str]]], add: Any) -> None:
    """Parts that multiply, and keys within one of them, have to be apart from one another."""
    for index, (name, keys) in enumerate(parts):
        for key, path in keys.items():
            within = [(name, other) for other in _overlapping(keys, key) if other != key]
            beside = [
                (other_name, other)
                for place, (other_name, others) in enumerate(parts)
                if place != index
                for other in _overlapping(others, key)
            ]
            for other_name, other in [*within, *beside]:
                if name != "list" or (other_name, other) in beside:
                    add(path, f"a key apart from the {other_name}'s {other}: one of the two would be lost")


def _overlapping(keys: Mapping[str, Any], key: str) -> list[str]:
    return [other for other in keys if overlap(other, key)]


def _at(data: Any, path: str) -> Any:
    """What stands at a path of a sweep's data, whose keys may hold dots."""
    if not path:
        return data
    if isinstance(data, Mapping):
        keys = [key for key in data if path == key or path.startswith(f"{key}.")]
        best = max(keys, key=len, default=None)
        return "" if best is None else _at(data[best], path[len(best) + 1 :])
    first, _, rest = path.partition(".")
    if isinstance(data, list) and first.isdigit() and int(first) < len(data):
        return _at(data[int(first)], rest)
    return ""

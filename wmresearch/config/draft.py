"""A config as plain data while it is put together, and the memory of where each value came from."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from glob import iglob
from pathlib import Path
from typing import Any

from wmresearch.config import yaml_text
from wmresearch.config.presets import near_files
from wmresearch.config.problems import ConfigError, Problem
from wmresearch.config.validation import shown

COMMAND_LINE = "command line"


@dataclass(frozen=True)
class Origin:
    """Who set a value: a file or the command line, and what stands around the value's dotted path there."""

    source: str
    before: str = ""
    after: str = ""

    def place(self, path: str, rest: str = "") -> tuple[str, str]:
        return self.source, f"{self.before}{path}{self.after}{rest}"


@dataclass
class Draft:
    """Plain data of a config, and for each dotted path that was set after its file was read, by whom."""

    data: dict[str, Any]
    source: str
    set_by: dict[str, Origin] = field(default_factory=dict)

    def copy(self) -> Draft:
        return Draft(copy.deepcopy(self.data), self.source, dict(self.set_by))

    def set(self, path: str, value: Any, origin: Origin) -> None:
        """Sets a dotted key.

        A mapping is merged, key by key, into the mapping that was there; one with a `kind` replaces it. A new `kind`
        alone empties its mapping first: the other keys belonged to the old kind.
        """
        *keys, last = path.split(".")
        target = self.data
        for depth, key in enumerate(keys, start=1):
            if not isinstance(target.get(key), dict):
                old = target.get(key)
                target[key] = {"kind": old} if isinstance(old, str) else {}
                self._set_by(".".join(keys[:depth]), origin)
            target = target[key]
        old = target.get(last)
        if last == "kind" and old is not None and old != value:
            target.clear()
            self._set_by(".".join(keys), origin)
        if isinstance(value, dict) and isinstance(old, dict) and "kind" not in value:
            for key, item in value.items():
                self.set(f"{path}.{key}", item, origin)
            return
        target[last] = copy.deepcopy(value)
        self._set_by(path, origin)

    def _set_by(self, path: str, origin: Origin) -> None:
        for inner in [key for key in self.set_by if key.startswith(path + ".")]:
            del self.set_by[inner]
        self.set_by[path] = origin

    def place(self, path: str) -> tuple[str, str]:
        """Where the value at a dotted path came from: source, and its path there."""
        best = max((p for p in self.set_by if path == p or path.startswith(p + ".")), key=len, default=None)
        return (self.source, path) if best is None else self.set_by[best].place(best, path[len(best) :])

    def folder(self, path: str) -> Path:
        """Where a relative path in the value at a dotted path starts."""
        source, _ = self.place(path)
        return Path.cwd() if source == COMMAND_LINE else Path(source).absolute().parent


def read_draft(path: Path) -> Draft:
    """The draft that a YAML file holds; ConfigError where it is no mapping."""
    data = yaml_text.read(path)
    if data is None:
        raise ConfigError([Problem(str(path), "", "", "a mapping of keys to values", "the file is empty")])
    if not isinstance(data, dict):
        raise ConfigError([Problem(str(path), "", shown(data), "a mapping of keys to values")])
    return Draft(data, str(path))


def parse_override(text: str) -> tuple[str, Any]:
    """`key.path=value` → (path, value), the value read as YAML.

    Raises:
        ConfigError: there is no `=`, or the value is no YAML.
    """
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not all(path.split(".")):
        raise ConfigError([Problem(COMMAND_LINE, "", text, "key=value, for example optimizer.learning_rate=3e-3")])
    try:
        return path, yaml_text.parse(value, COMMAND_LINE)
    except ConfigError as error:
        # a line number says nothing here; the whole override does
        said = [Problem(COMMAND_LINE, path, shown(value), p.expected, p.hint) for p in error.problems]
        raise ConfigError(said) from None


def parse_overrides(texts: Iterable[str], problems: list[Problem]) -> list[tuple[str, Any]]:
    """All overrides in the order in which they apply: a `kind` goes before the keys that belong to it."""
    ordered: list[tuple[str, Any]] = []
    for text in texts:
        try:
            key, value = parse_override(text)
        except ConfigError as error:
            problems.extend(error.problems)
            continue
        mapping, _, last = key.rpartition(".")
        place = len(ordered)
        while (
            last == "kind"
            and place > 0
            and ordered[place - 1][0].startswith(mapping + ".")
            and ordered[place - 1][0] != key
        ):
            place -= 1
        ordered.insert(place, (key, value))
    return ordered


def find_file(draft: Draft, path: str, text: str) -> tuple[str, bool]:
    """The absolute path (or glob) that a text at a dotted path means, and whether there is something at it."""
    absolute = os.path.normpath(draft.folder(path) / os.path.expanduser(text))
    return absolute, os.path.exists(absolute) or any(True for _ in iglob(absolute, recursive=True))


def missing_file(draft: Draft, path: str, text: str, expected: str) -> Problem:
    """The problem of a path at which there is nothing."""
    absolute = Path(find_file(draft, path, text)[0])
    hint = near_files(absolute)
    return Problem(*draft.place(path), shown(text), expected, f"looked at {absolute}" + (f"; {hint}" if hint else ""))

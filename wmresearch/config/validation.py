"""From plain data to a config object, or to every problem in the data, each with its place and nearest valid name."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from wmresearch.config import yaml_text
from wmresearch.config.base import CHECKS_LATER, Check, Config
from wmresearch.config.problems import ConfigError, Problem, nearest
from wmresearch.config.types import ABSENT, Step, in_words, is_mapping, kinds, stand_in, steps_to

Path = tuple[str | int, ...]
Place = Callable[[str], tuple[str, str]]
"""Dotted path in the config → (the file or other source it came from, its dotted path there)."""

C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class Examined(Generic[C]):
    """What could be made of some data: an object with stand-ins for wrong entries, and the problems.

    `config` is None where not even stand-ins helped; `replaced` are the places of the stand-ins.
    """

    config: C | None
    problems: list[Problem]
    replaced: frozenset[Path]

    def is_sound(self, *path: str) -> bool:
        """Whether the entry at a path, and all in it, is the user's own."""
        return not any(_overlap(path, gone) for gone in self.replaced)


def validate(config_class: type[C], data: Any, place: Place) -> C:
    """A config object from plain data.

    Raises:
        ConfigError: with every problem in the data.
    """
    examined = examine(config_class, data, place)
    if examined.problems or examined.config is None:
        raise ConfigError(examined.problems)
    return examined.config


def examine(config_class: type[C], data: Any, place: Place) -> Examined[C]:
    """A config object and every problem in the data.

    A wrong entry would keep the object from being built, and so hide the rules across fields. So each wrong entry is
    replaced by its default, or by some valid value, until the object stands; then all rules are asked, and those that
    depend on a replaced entry are passed over.
    """
    if not isinstance(data, dict):
        value, hint = ("", "there is nothing in it") if data is None else (shown(data), "")
        problem = Problem(place("")[0], "", value, "a mapping of keys to values", hint)
        return Examined(None, [problem], frozenset([()]))
    rest = copy.deepcopy(data)
    problems: list[Problem] = []
    replaced: set[Path] = set()
    config: C | None = None
    while config is None:
        try:
            config = config_class.model_validate(rest, context=CHECKS_LATER)
        except ValidationError as error:
            before = frozenset(replaced)
            found = [(item, _blamed(item, config_class, rest)) for item in error.errors(include_url=False)]
            wrong_kinds = {_path(steps) for item, steps in found if _is_wrong_kind(item)}
            for item, steps in found:
                path = _path(steps)
                if not any(_overlap(path, gone) for gone in before | (wrong_kinds - {path})):
                    problems.append(_problem(item, steps, data, place))
                _replace(rest, steps, replaced)
            if replaced == before:
                break
    for path, owner, check in _broken_rules(config) if config is not None else ():
        blamed = (*path, *_keys(check.path, owner))
        depends = [blamed, *((*path, *_keys(name, owner)) for name in check.depends_on)]
        if any(_starts(other, gone) for gone in replaced for other in depends) or any(
            _starts(gone, blamed) for gone in replaced
        ):
            continue
        problems.append(_said(blamed, data, place, check.expected, check.hint))
    return Examined(config, list(dict.fromkeys(problems)), frozenset(replaced))


def shown(value: Any) -> str:
    """A value the way a user writes it, cut to one line."""
    if isinstance(value, str):
        text = value if yaml_text.is_plain(value) and value.isprintable() else json.dumps(value, ensure_ascii=False)
    elif isinstance(value, float) and not math.isfinite(value):
        text = yaml_text.write(value).split()[0]
    else:
        try:
            text = json.dumps(value, ensure_ascii=False, default=repr)
        except (ValueError, RecursionError):
            text = f"a {type(value).__name__} too large to print"
    return text if len(text) <= 80 else text[:77] + "..."


def _is_wrong_kind(item: Any) -> bool:
    return item["type"] == "literal_error" and item["loc"][-1] == "kind"


def _blamed(item: Any, config_class: type[Config], data: Any) -> list[Step]:
    """The steps to the entry that an error is about: what misses an item is a list, what has a wrong kind a mapping."""
    steps = steps_to(item["loc"], config_class)
    short = item["type"] == "missing" and isinstance(_at(data, _path(steps[:-1])), list)
    return steps[:-1] if short or _is_wrong_kind(item) else steps


def _path(steps: list[Step]) -> Path:
    return tuple(step.key for step in steps)


def _starts(path: Path, prefix: Path) -> bool:
    return path[: len(prefix)] == prefix


def _overlap(path: Path, other: Path) -> bool:
    return _starts(path, other) or _starts(other, path)


def _at(data: Any, path: Path) -> Any:
    for key in path:
        if isinstance(data, dict):
            data = data.get(key, ABSENT)
        elif isinstance(data, list) and isinstance(key, int) and key < len(data):
            data = data[key]
        else:
            return ABSENT
    return data


def _replace(data: dict[str, Any], steps: list[Step], replaced: set[Path]) -> None:
    """Puts a valid value at the end of the steps; where none can or one does already, a step before."""
    path = _path(steps)
    while steps and path in replaced:
        steps, path = steps[:-1], path[:-1]
    while steps:
        step, parent = steps[-1], _at(data, path[:-1])
        unknown = step.annotation is ABSENT
        value = ABSENT if unknown or step.has_default else stand_in(step.annotation)
        if isinstance(parent, dict) and (unknown or step.has_default):
            parent.pop(step.key, None)
            break
        fits = isinstance(parent, dict) or (isinstance(parent, list) and isinstance(step.key, int))
        if fits and value is not ABSENT:
            parent[step.key] = value
            break
        steps, path = steps[:-1], path[:-1]
    if path:
        replaced.add(path)


def _problem(item: Any, steps: list[Step], data: Any, place: Place) -> Problem:
    """A pydantic error in the words of a user of the config."""
    path, kind, context = _path(steps), item["type"], item.get("ctx", {})
    last = steps[-1]
    if last.annotation is ABSENT:
        return _said(path, data, place, "a key that is known here", nearest(str(last.key), last.known))
    if kind == "wrong":
        return _said(path, data, place, context["expected"], context["hint"])
    expected = in_words(last.annotation)
    if kind == "missing" and _at(data, path) is ABSENT:
        about = last.description.rstrip(".")
        return _said(path, data, place, f"{expected}: this key is required" + (f" ({about})" if about else ""))
    if kind == "finite_number":
        expected = expected.replace("a number", "a finite number")
    value = _at(data, path)
    names = kinds(last.annotation)
    if (kind == "union_tag_invalid" or _is_wrong_kind(item)) and isinstance(value, dict):
        path, value = (*path, "kind"), value["kind"]
        expected = f"one of {', '.join(names)}"
    return _said(path, data, place, expected, nearest(value, names) if isinstance(value, str) and names else "")


def _said(path: Path, data: Any, place: Place, expected: str, hint: str = "") -> Problem:
    """A problem at a path; within a shorthand (`corpus: stdlib/small`), at the shorthand."""
    for length in range(len(path), 0, -1):
        if isinstance(_at(data, path[: length - 1]), dict | list):
            break
    value = _at(data, path[:length])
    source, shown_path = place(".".join(map(str, path[:length])))
    return Problem(source, shown_path or "''", "" if value is ABSENT else shown(value), expected, hint)


def _broken_rules(value: Any, path: Path = ()) -> Iterator[tuple[Path, type[BaseModel], Check]]:
    """Each config object's own checks, those within it first."""
    if isinstance(value, Config):
        for name in type(value).model_fields:
            yield from _broken_rules(getattr(value, name), (*path, name))
        for check in value.checks():
            yield path, type(value), check
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _broken_rules(item, (*path, key))
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from _broken_rules(item, (*path, index))


def _keys(dotted: str, owner: type[BaseModel]) -> Path:
    """A check's dotted path, as keys. Keys of a dict field (`grid`) hold dots themselves: a list index may follow."""
    first, _, rest = dotted.partition(".")
    if rest and first in owner.model_fields and is_mapping(owner.model_fields[first].annotation):
        key, _, index = rest.rpartition(".")
        return (first, key, int(index)) if index.isdigit() else (first, rest)
    return tuple(int(part) if part.isdigit() else part for part in dotted.split("."))

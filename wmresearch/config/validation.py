"""From plain data to a config object, or to every problem in the data, each with its place and the nearest valid name."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from wmresearch.config.base import Check, Config
from wmresearch.config.problems import ConfigError, Problem, nearest

Path = tuple[str | int, ...]
Place = Callable[[str], tuple[str, str]]
"""Dotted path in the config → (the file or other source it came from, its dotted path there)."""

C = TypeVar("C", bound=Config)
_ABSENT = object()


def validate(config_class: type[C], data: Any, place: Place) -> C:
    """A config object from plain data.

    A wrong entry would hide the checks that come after it, so wrong entries are taken out and the rest is validated
    again until nothing new is found; rules that depend on an entry taken out are not reported.

    Raises:
        ConfigError: with every problem in the data.
    """
    if not isinstance(data, dict):
        source, _ = place("")
        raise ConfigError([Problem(source, "", shown(data), "a mapping of keys to values")])
    rest = copy.deepcopy(data)
    problems: dict[tuple[str, str], Problem] = {}
    removed: set[str] = set()
    while True:
        try:
            config = config_class.model_validate(rest)
            break
        except ValidationError as error:
            found = list(_findings(error, config_class, rest))
        progress = False
        for path, expected, hint, depends_on in found:
            dotted = ".".join(map(str, path))
            if any(_within(other, gone) or _within(gone, other) for other in (dotted, *depends_on) for gone in removed):
                continue
            source, shown_path = place(dotted)
            value = _at(rest, path)
            text = "" if value is _ABSENT else shown(value)
            problems.setdefault((dotted, expected), Problem(source, shown_path, text, expected, hint))
            removed.add(dotted)
            progress |= _remove(rest, path)
        if not progress:
            break
    if problems:
        raise ConfigError(problems.values())
    return config


def shown(value: Any) -> str:
    """A value the way a user writes it, cut to one line."""
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else (value or "''")
    return text if len(text) <= 80 else text[:77] + "..."


def _within(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + ".")


def _at(data: Any, path: Path) -> Any:
    for key in path:
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            return _ABSENT
    return data


def _remove(data: Any, path: Path) -> bool:
    """Takes out the entry at a path (of a list, the whole list: its other entries would move)."""
    for depth, key in enumerate(path):
        if isinstance(data, dict) and key in data and depth < len(path) - 1 and not isinstance(data[key], list):
            data = data[key]
        elif isinstance(data, dict):
            return data.pop(key, _ABSENT) is not _ABSENT
        else:
            return False
    return False


def _findings(
    error: ValidationError, config_class: type[Config], data: Any
) -> Iterator[tuple[Path, str, str, tuple[str, ...]]]:
    for item in error.errors(include_url=False):
        path, owner = _resolve(item["loc"], config_class, data)
        context = item.get("ctx", {})
        if item["type"] == "checks":
            for check in context["checks"]:
                yield _from_check(check, path, owner)
        else:
            expected, hint = _said(item["type"], item["msg"], context, path, owner)
            if item["type"] in ("union_tag_invalid", "union_tag_not_found"):
                path = (*path, "kind")
            yield path, expected, hint, ()


def _from_check(check: Check, path: Path, owner: type[BaseModel] | None) -> tuple[Path, str, str, tuple[str, ...]]:
    names = owner.model_fields if owner else {}
    first, _, rest = check.path.partition(".")
    # a dict field's keys hold dots themselves (grid): keep them whole, with a list index after them
    if first in names and get_origin(_bare(names[first].annotation)) is dict and rest:
        key, _, index = rest.rpartition(".")
        tail: Path = (first, key, int(index)) if index.isdigit() else (first, rest)
    else:
        tail = tuple(int(part) if part.isdigit() else part for part in check.path.split("."))
    prefix = "".join(f"{part}." for part in path)
    return (*path, *tail), check.expected, check.hint, tuple(prefix + name for name in check.depends_on)


def _said(kind: str, message: str, context: dict[str, Any], path: Path, owner: type[BaseModel] | None) -> tuple[str, str]:
    """What was expected, and a hint, in words for each of pydantic's error types that a config can give."""
    if kind == "extra_forbidden":
        return "no such key here", nearest(str(path[-1]), owner.model_fields if owner else ())
    if kind == "missing":
        return f"a value: this key is required{_described(owner, path)}", ""
    if kind == "union_tag_invalid":
        valid = [tag.strip().strip("'") for tag in context["expected_tags"].split(",")]
        return f"one of {', '.join(valid)}", nearest(context["tag"], valid)
    if kind == "union_tag_not_found":
        return "a mapping with a `kind`, or the name of a kind", ""
    if kind == "literal_error":
        return f"one of {context['expected'].replace(chr(39), '')}", ""
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return "a mapping of keys to values", ""
    if kind in ("tuple_type", "list_type"):
        return "a list", ""
    if kind in ("too_short", "too_long"):
        return message[0].lower() + message[1:], ""
    text = message.removeprefix("Input should be ").removeprefix("Value error, ")
    return text[0].lower() + text[1:], ""


def _described(owner: type[BaseModel] | None, path: Path) -> str:
    field = owner.model_fields.get(str(path[-1])) if owner else None
    return f" ({field.description.rstrip('.')})" if field and field.description else ""


def _bare(annotation: Any) -> Any:
    """An annotation without Annotated and without `| None`."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    options = [option for option in get_args(annotation) if option is not type(None)]
    if type(None) in get_args(annotation) and len(options) == 1:
        return _bare(options[0])
    return annotation


def _members(annotation: Any) -> list[type[BaseModel]]:
    """The config classes that an annotation (a class, a union, optional or annotated) admits."""
    bare = _bare(annotation)
    if isinstance(bare, type) and issubclass(bare, BaseModel):
        return [bare]
    return [member for option in get_args(bare) for member in _members(option)] if get_origin(bare) is not dict else []


def _resolve(loc: tuple[str | int, ...], config_class: type[Config], data: Any) -> tuple[Path, type[BaseModel] | None]:
    """Pydantic's location without the tags of unions, and the class that owns the last key."""
    path: list[str | int] = []
    owner: type[BaseModel] | None = config_class
    within: type[BaseModel] | None = config_class
    members: list[type[BaseModel]] = []
    for key in loc:
        if key == "[key]":
            continue
        tagged = next((m for m in members if len(members) > 1 and _kind(m) == key), None)
        if tagged is not None:
            owner = within = tagged
            members = []
            continue
        owner = within
        path.append(key)
        field = within.model_fields.get(str(key)) if within else None
        members = _members(field.annotation) if field else []
        within = members[0] if len(members) == 1 else None
    if not path or (within is not None and isinstance(_at(data, tuple(path)), dict)):
        owner = within or owner
    return tuple(path), owner


def _kind(member: type[BaseModel]) -> str | None:
    field = member.model_fields.get("kind")
    return field.default if field else None

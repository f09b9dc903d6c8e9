"""The numbers of a run's config that its compiled program takes as arguments, and what the program is compiled from.

A number that is zero or null is not one of them: the program then lacks what it would be the strength of.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from wmresearch.config.base import Traced
from wmresearch.config.run import RunConfig

M = TypeVar("M", bound=BaseModel)


def numbers(config: BaseModel) -> dict[str, float]:
    """Dotted key → number."""
    return {key: float(value) for key, value in _numbers(config, "")}


def _numbers(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _numbers(item, f"{prefix}{index}.")
    elif isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            item = getattr(value, name)
            if not any(isinstance(mark, Traced) for mark in field.metadata):
                yield from _numbers(item, f"{prefix}{name}.")
            elif item:
                yield prefix + name, item


def with_numbers(config: M, given: Mapping[str, Any]) -> M:
    """The config with these numbers in place of its own; they may be JAX's."""
    return _with_numbers(config, given, "") if given else config


def _with_numbers(value: Any, given: Mapping[str, Any], prefix: str) -> Any:
    if isinstance(value, tuple):
        return tuple(_with_numbers(item, given, f"{prefix}{index}.") for index, item in enumerate(value))
    if not isinstance(value, BaseModel):
        return value
    return value.model_copy(
        update={
            name: given.get(prefix + name, _with_numbers(getattr(value, name), given, f"{prefix}{name}."))
            for name in type(value).model_fields
        }
    )


def program_key(config: RunConfig) -> str:
    """Twelve hexadecimal digits over all of a config but its seed and numbers: what compiled programs follow from.

    A file of the user's own stands there by its content: each run has a copy.
    """
    ones = dict.fromkeys(numbers(config), 1)
    path = {"model": {"head_output": {"file"}}}
    content = with_numbers(config, ones | {"seed": 0}).model_dump(mode="json", exclude=path)
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]

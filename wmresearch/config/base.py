"""What every config class has in common: frozen, no unknown keys, checks across fields, `kind` unions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Strict, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError


@dataclass(frozen=True)
class Operational:
    """Marks a field that does not change a run's result: left out of the run's id, free to differ on resume."""


@dataclass(frozen=True)
class Traced:
    """Marks a number that a compiled program takes as an argument, so that runs which differ in it share one."""


@dataclass(frozen=True)
class Words:
    """Marks a type with how messages call its valid values, where type and range do not say it."""

    expected: str


@dataclass(frozen=True)
class Check:
    """A rule across fields that does not hold: the field to blame, what was expected of it, what else it depends on.

    Where an entry in `depends_on` is itself wrong, the rule cannot be judged and the check is not reported.
    """

    path: str
    expected: str
    depends_on: tuple[str, ...] = ()
    hint: str = ""


CHECKS_LATER = {"checks": "later"}
"""Validation context: build the object and leave its `checks` to the caller, who knows every object's place."""


class Config(BaseModel):
    """Base of all config classes: immutable, strict about types, closed to unknown keys.

    A subclass states rules across its fields in `checks`, all of which are reported together.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def checks(self) -> Iterator[Check]:
        """The rules across fields that this value breaks."""
        return iter(())

    @model_validator(mode="after")
    def _raise_checks(self, info: ValidationInfo) -> Config:
        found = [] if info.context is CHECKS_LATER else list(self.checks())
        if found:
            text = "; ".join(f"{check.path}: expected {check.expected}" for check in found)
            raise PydanticCustomError("checks", "{text}", {"text": text})
        return self


def wrong(expected: str, hint: str = "") -> PydanticCustomError:
    """What a validator of a single field raises: said as it stands, at the field's place."""
    return PydanticCustomError("wrong", "expected {expected}", {"expected": expected, "hint": hint})


def _name_as_kind(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


NameAsKind = BeforeValidator(_name_as_kind)
"""On a union by `kind`: a bare name stands for `{kind: name}`, so `tokenizer: char` is enough."""

AllowList = Strict(False)
"""On a tuple: a list will do as well (YAML has no tuples)."""

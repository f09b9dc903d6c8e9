"""What the types of config fields say: their valid values in words, some valid value, the way to an entry."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ConfigDict, Tag, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from wmresearch.config.base import Words

ABSENT = object()

_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list",
    tuple: "a list",
    dict: "a mapping of keys to values",
}
_BOUNDS: dict[type, tuple[str, str]] = {
    annotated_types.Ge: ("of at least", "ge"),
    annotated_types.Gt: ("above", "gt"),
    annotated_types.Le: ("of at most", "le"),
    annotated_types.Lt: ("below", "lt"),
}


@dataclass(frozen=True)
class Step:
    """One key on the way to an entry: what may stand there (ABSENT: no such key is known), and the keys known there."""

    key: str | int
    annotation: Any
    known: tuple[str, ...] = ()
    has_default: bool = False
    description: str = ""


def steps_to(loc: Sequence[str | int], config_class: type[BaseModel]) -> list[Step]:
    """The steps of pydantic's location of an error, without the tags of unions."""
    steps: list[Step] = []
    here: Any = config_class
    of_keys: Any = None  # what the last key itself had to be
    for key in loc:
        named = next((option for option in _options(_bare(here)) if key in _tags(option)), None)
        if named is not None:  # a union that is told apart by other than a kind
            here = named
            steps[-1] = replace(steps[-1], annotation=here)
            continue
        found = members(here)
        tagged = next((member for member in found if len(found) > 1 and _kind(member) == key), None)
        bare, origin = _bare(here), get_origin(_bare(here))
        if key == "[key]" and of_keys is not None:  # not the value is wrong, but the key before
            steps[-1] = Step(steps[-1].key, ABSENT, tuple(kinds(of_keys)))
            break
        if tagged is not None:
            here = tagged
            continue
        if len(found) == 1:
            field = found[0].model_fields.get(str(key))
            here = annotation_of(field) if field else ABSENT
            default = field is not None and not field.is_required()
            about = (field.description if field else None) or ""
            steps.append(Step(key, here, tuple(found[0].model_fields), default, about))
            of_keys = None
            continue
        if origin not in (dict, list, tuple):
            break  # what pydantic adds for unions without a kind
        options = get_args(bare)
        of_keys = options[0] if origin is dict else None
        if origin is dict:
            here = options[1]
        else:
            here = options[int(key)] if origin is tuple and options[-1] is not ... else options[0]
        steps.append(Step(key, here))
    return steps


def annotation_of(field: FieldInfo) -> Any:
    """A field's type with its constraints."""
    return Annotated[field.annotation, field]


def members(annotation: Any) -> list[type[BaseModel]]:
    """The config classes that an annotation (a class, a union, optional or annotated) admits."""
    bare = _bare(annotation)
    if isinstance(bare, type) and issubclass(bare, BaseModel):
        return [bare]
    return [member for option in _options(bare) for member in members(option)]


def kinds(annotation: Any) -> list[str]:
    """The names that may stand for a value: the kinds of a union, or a Literal's strings."""
    bare = _bare(annotation)
    if get_origin(bare) is Literal:
        return [value for value in get_args(bare) if isinstance(value, str)]
    return [kind for member in members(annotation) if (kind := _kind(member))]


def is_mapping(annotation: Any) -> bool:
    """Whether the values are plain mappings with keys of the user's choice."""
    return get_origin(_bare(annotation)) is dict


def in_words(annotation: Any) -> str:
    """The valid values: `a whole number of at least 1, or null`."""
    if annotation is ABSENT:
        return "another value"
    bare, limits, optional = _parts(annotation)
    text = next((item.expected for item in limits if isinstance(item, Words)), None) or _type_in_words(bare, limits)
    return text + (", or null" if optional else "")


def stand_in(annotation: Any) -> Any:
    """Some valid plain value, or ABSENT where none is found."""
    found = members(annotation)
    if found:
        out = {"kind": kind} if (kind := _kind(found[0])) else {}
        required = {name: field for name, field in found[0].model_fields.items() if field.is_required()}
        out |= {name: stand_in(annotation_of(field)) for name, field in required.items()}
        return out
    adapter = TypeAdapter(annotation, config=ConfigDict(strict=True))
    scalars: list[Any] = [1, 0.5, "x", True, None, *kinds(annotation)]
    for candidate in [*scalars, {}, [], [1], ["x"], [0.5], [0.5, 0.5], {"x": 1}, {"x": "x"}, {"x": {}}, {"x": [1]}]:
        try:
            adapter.validate_python(candidate)
        except ValidationError:
            continue
        return candidate
    return ABSENT


def _kind(member: type[BaseModel]) -> str | None:
    field = member.model_fields.get("kind")
    return field.default if field else None


def _options(bare: Any) -> list[Any]:
    return list(get_args(bare)) if get_origin(bare) in (Union, types.UnionType) else []


def _tags(option: Any) -> list[str]:
    return [item.tag for item in _parts(option)[1] if isinstance(item, Tag)]


def _bare(annotation: Any) -> Any:
    return _parts(annotation)[0]


def _parts(annotation: Any) -> tuple[Any, list[Any], bool]:
    """An annotation without Annotated and `| None`; the constraints it had; whether it admits None."""
    limits: list[Any] = []
    optional = False
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *extra = get_args(annotation)
            for item in extra:
                limits += item.metadata if isinstance(item, FieldInfo) else [item]
            continue
        options = [option for option in _options(annotation) if option is not type(None)]
        if len(options) != 1 or len(_options(annotation)) != 2:
            return annotation, limits, optional or type(None) in _options(annotation)
        annotation, optional = options[0], True


def _type_in_words(bare: Any, limits: list[Any]) -> str:
    origin = get_origin(bare) or bare
    if origin is Literal:
        return f"one of {', '.join(map(str, get_args(bare)))}"
    if members(bare):
        names = [] if isinstance(bare, type) else kinds(bare)
        return (
            f"one of {', '.join(names)}: a name, or a mapping with it as `kind`"
            if names
            else "a mapping of keys to values"
        )
    if _options(bare):  # plain values, such as a number or a word
        return ", or ".join(in_words(option).removeprefix("one of ") for option in _options(bare))
    if origin is tuple and get_args(bare)[-1] is not ...:
        return f"a list of {len(get_args(bare))} entries"
    name = _NAMES.get(origin, "another value")
    least = next((item.min_length for item in limits if isinstance(item, annotated_types.MinLen)), 0)
    if least:
        return name + (
            " that is not empty" if origin is str else f" with at least {least} entr{'y' if least == 1 else 'ies'}"
        )
    said = [f"{words} {getattr(item, attribute):,}" for item in limits
            for limit, (words, attribute) in _BOUNDS.items() if type(item) is limit]  # fmt: skip
    return " ".join([name, " and ".join(said)]).strip()

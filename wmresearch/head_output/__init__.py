"""The part of an attention layer after the softmax: the thing that the arms of a sweep exchange."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

from wmresearch.config.head_output import CustomConfig, HeadOutputConfig
from wmresearch.config.model import ModelConfig
from wmresearch.head_output.base import HeadOutput
from wmresearch.head_output.custom import load_kind, make_custom
from wmresearch.head_output.orders import Mix

for _module in pkgutil.iter_modules(__path__):  # a file in this folder is all that a new kind takes
    importlib.import_module(f"{__name__}.{_module.name}")


def _kinds(base: type[Any]) -> Iterator[type[HeadOutput]]:
    for member in base.__subclasses__():
        if not inspect.isabstract(member):
            yield member
        yield from _kinds(member)


KINDS: dict[str, type[HeadOutput]] = {member.kind: member for member in _kinds(HeadOutput)}
"""The kinds in this package. Those of the user's own are in none of its lists: `custom` loads them from their files."""


def make_head_output(model: ModelConfig, layer: int = 0, first: HeadOutput | None = None) -> HeadOutput:
    """The head output of a layer as the config says, its parameters not yet made."""
    config = model.head_output
    if isinstance(config, CustomConfig):
        return make_custom(config, model, layer, first)
    return KINDS[config.kind].form(config)(config, model, layer, first)


def kind_of(config: HeadOutputConfig) -> str:
    """What a head output's kind is called; the name that its file gives it, where it is the user's own."""
    return load_kind(config).name if isinstance(config, CustomConfig) else config.kind


__all__ = ["KINDS", "HeadOutput", "Mix", "kind_of", "make_head_output"]

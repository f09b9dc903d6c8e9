"""The part of an attention layer after the softmax: the thing that the arms of a sweep exchange."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

from wmresearch.config.model import ModelConfig
from wmresearch.head_output.base import HeadOutput
from wmresearch.head_output.orders import Mix

for _module in pkgutil.iter_modules(__path__):  # a file in this folder is all that a new kind takes
    importlib.import_module(f"{__name__}.{_module.name}")


def _kinds(base: type[Any]) -> Iterator[type[HeadOutput]]:
    for member in base.__subclasses__():
        if not inspect.isabstract(member):
            yield member
        yield from _kinds(member)


KINDS: dict[str, type[HeadOutput]] = {member.kind: member for member in _kinds(HeadOutput)}


def make_head_output(model: ModelConfig, layer: int = 0, first: HeadOutput | None = None) -> HeadOutput:
    """The head output of a layer as the config says, its parameters not yet made."""
    return KINDS[model.head_output.kind](model.head_output, model, layer, first)


__all__ = ["KINDS", "HeadOutput", "Mix", "make_head_output"]

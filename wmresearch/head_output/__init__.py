"""The part of an attention layer after the softmax: the thing that the arms of a sweep exchange."""

import importlib
import pkgutil

from wmresearch.config.model import ModelConfig
from wmresearch.head_output.base import HeadOutput, Mix

for _module in pkgutil.iter_modules(__path__):  # a file in this folder is all that a new kind takes
    importlib.import_module(f"{__name__}.{_module.name}")

KINDS: dict[str, type[HeadOutput]] = {member.kind: member for member in HeadOutput.__subclasses__()}


def make_head_output(model: ModelConfig) -> HeadOutput:
    """The head output that the config names, its parameters not yet made."""
    return KINDS[model.head_output.kind](model.head_output, model)


__all__ = ["KINDS", "HeadOutput", "Mix", "make_head_output"]

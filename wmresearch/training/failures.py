"""What kind of failure ended a run: what is done about it, and how it is told, depends on that."""

from __future__ import annotations

from typing import Literal

from wmresearch.config import ConfigError

Failure = Literal["bad_config", "diverged", "out_of_memory", "lost_device", "killed", "error"]

_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "bad_alloc", "Out of memory", "out of memory", "Cannot allocate memory")
_LOST_DEVICE = ("CUDA_ERROR", "DEADLINE_EXCEEDED", "UNAVAILABLE", "device lost", "DATA_LOSS")


def failure_of(error: BaseException) -> Failure:
    """The kind of an error that was raised while a run was trained."""
    if isinstance(error, ConfigError):
        return "bad_config"
    text = str(error)
    if isinstance(error, MemoryError) or any(words in text for words in _OUT_OF_MEMORY):
        return "out_of_memory"
    return "lost_device" if any(words in text for words in _LOST_DEVICE) else "error"

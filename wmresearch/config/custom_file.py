"""The Python file of a head output of the user's own: found, hashed and read, but not run (that needs JAX)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from wmresearch.config.draft import Draft, find_file, missing_file
from wmresearch.config.head_output import CustomConfig
from wmresearch.config.problems import ConfigError, Problem
from wmresearch.config.run import RunConfig
from wmresearch.config.validation import Place, shown

KEY = "model.head_output"

AskCustom: TypeAlias = Callable[[RunConfig, Place], list[Problem]]
"""What is wrong with the file of a custom head output and with its settings: asked of a room that may run the file."""


def with_file(config: RunConfig, draft: Draft) -> tuple[RunConfig, list[Problem]]:
    """The config with its custom head output's path made absolute and the hash of the file's content filled in."""
    chosen = config.model.head_output
    assert isinstance(chosen, CustomConfig)
    key = f"{KEY}.file"
    path, exists = find_file(draft, key, chosen.file)
    expected = "the path of a Python file"
    try:
        sha256 = sha256_of(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        if not exists:
            return config, [missing_file(draft, key, chosen.file, expected)]
        reason = getattr(error, "strerror", None) or str(error)
        return config, [Problem(*draft.place(key), shown(chosen.file), expected, f"{path}: {reason}")]
    if chosen.sha256 not in (None, sha256):
        expected, hint = f"{sha256}, that of {path}", "the file has changed: put it back, or leave sha256 out"
        return config, [Problem(*draft.place(f"{KEY}.sha256"), shown(chosen.sha256), expected, hint)]
    found = chosen.model_copy(update={"file": path, "sha256": sha256})
    return config.model_copy(update={"model": config.model.model_copy(update={"head_output": found})}), []


def read_code(config: CustomConfig) -> bytes:
    """The content of the file.

    Raises:
        ConfigError: it cannot be read, or it is no longer the content that the config was loaded with.
    """
    try:
        content = Path(config.file).read_bytes()
    except (OSError, ValueError) as error:
        hint = getattr(error, "strerror", None) or str(error)
        raise ConfigError([Problem(config.file, "", "", "the Python file of a head output", hint)]) from None
    if config.sha256 not in (None, sha256_of(content)):
        expected, hint = f"the content with sha256 {config.sha256}", "the file has changed since: put it back"
        raise ConfigError([Problem(config.file, "", "", expected, hint)])
    return content


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

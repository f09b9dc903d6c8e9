"""Refuses to train a run in the directory of another one, and says what they differ in."""

from __future__ import annotations

from typing import Any

from wmresearch.config import ConfigError, Problem, RunConfig, scientific, yaml_text
from wmresearch.config.validation import shown
from wmresearch.training.run_directory import RunDirectory


def refuse_another_run(directory: RunDirectory, config: RunConfig, identity: str) -> None:
    """Does nothing where the directory is empty or holds the run of this identity.

    Raises:
        ConfigError: it holds another; one problem for each key that changes a result and differs.
    """
    summary = directory.summary()
    if not summary or summary["run_id"] == identity:
        return
    file = directory.config_file
    try:
        differing = differences(directory.config(), config)
    except ConfigError:  # written by another version, or not at all
        differing = {}
    hint = "choose another --dir" + ("" if differing or not file.exists() else "; the corpus has changed since")
    first = Problem(str(directory.path), "", f"run {summary['run_id']}", f"an empty folder, or run {identity}", hint)
    rest = [Problem(str(file), key, shown(old), f"{shown(new)} for this run") for key, (old, new) in differing.items()]
    raise ConfigError([first, *rest])


def differences(old: RunConfig, new: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Dotted key → (old value, new value) of what changes a result and differs; None where there is no such key.

    The corpus is left out: runs are told apart by its text, not by where it lies.
    """
    olds, news = (yaml_text.flat(config.model_dump(mode="json")) for config in (old, new))
    keys = [
        key
        for key in (yaml_text.flat(scientific(old)) | yaml_text.flat(scientific(new)))
        if not key.startswith("data.corpus.")
    ]
    return {key: (olds.get(key), news.get(key)) for key in sorted(keys) if olds.get(key) != news.get(key)}

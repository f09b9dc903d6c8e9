"""Reads run files, with overrides on top, into configs; or says everything that is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wmresearch.config.custom_file import AskCustom, with_file
from wmresearch.config.data import TextFiles
from wmresearch.config.draft import (
    COMMAND_LINE,
    Draft,
    Origin,
    find_file,
    missing_file,
    parse_override,
    parse_overrides,
    read_draft,
)
from wmresearch.config.found_ranks import needs_ranks, with_found_ranks
from wmresearch.config.head_output import CustomConfig
from wmresearch.config.presets import find_config
from wmresearch.config.problems import ConfigError, Problem
from wmresearch.config.run import RunConfig
from wmresearch.config.validation import Examined, Place, examine, validate

__all__ = ["COMMAND_LINE", "examined_run", "load_run", "parse_override", "parse_run"]


def not_asked(config: RunConfig, place: Place) -> list[Problem]:
    del config, place
    return []


def load_run(path_or_preset: str | Path, overrides: Sequence[str] = (), ask_custom: AskCustom = not_asked) -> RunConfig:
    """The run config in a YAML file (or preset), with `key=value` overrides on top.

    `ask_custom` says what is wrong with a head output of the user's own, which this room does not run.

    Raises:
        ConfigError: with every problem in file and overrides.
    """
    draft = read_draft(find_config(path_or_preset))
    if "arms" in draft.data and "model" not in draft.data:
        raise ConfigError([Problem(draft.source, "", "", "a run config, and this is a sweep", "try `wm sweep`")])
    problems: list[Problem] = []
    for key, value in parse_overrides(overrides, problems):
        draft.set(key, value, Origin(COMMAND_LINE))
    config, found = examined_run(draft, ask_custom)
    if problems or found or config is None:
        raise ConfigError([*problems, *found])
    return config


def parse_run(data: Any, source: str) -> RunConfig:
    """A run config from plain data, as kept in a run directory (its paths are absolute).

    Raises:
        ConfigError: with every problem in the data.
    """
    draft = Draft({}, source)
    config = validate(RunConfig, data, draft.place)
    own = config.model.head_output
    problems: list[Problem] = []
    if isinstance(own, CustomConfig) and own.sha256 is None:
        config, problems = with_file(config, draft)
    elif needs_ranks(config):
        config, problems = with_found_ranks(config, draft)
    if problems:
        raise ConfigError(problems)
    return config


def examined_run(draft: Draft, ask_custom: AskCustom) -> tuple[RunConfig | None, list[Problem]]:
    """The config of a draft, the paths in it made absolute, and everything that is wrong with it."""
    examined = examine(RunConfig, draft.data, draft.place)
    config, problems = examined.config, examined.problems
    if config is None:
        return None, problems
    config, missing = _with_corpus(config, draft, examined)
    problems = [*problems, *missing]
    if isinstance(config.model.head_output, CustomConfig) and examined.is_sound("model", "head_output", "file"):
        config, wrong = with_file(config, draft)
        if not wrong and examined.is_sound("model"):
            wrong = ask_custom(config, draft.place)
        problems += wrong
    if needs_ranks(config) and examined.is_sound("model"):
        config, wrong = with_found_ranks(config, draft)
        problems += wrong
    return config, problems


def _with_corpus(config: RunConfig, draft: Draft, examined: Examined[RunConfig]) -> tuple[RunConfig, list[Problem]]:
    """The config with its text files' paths made absolute, and those at which there is nothing."""
    corpus = config.data.corpus
    if not isinstance(corpus, TextFiles):
        return config, []
    found: dict[str, str] = {}
    missing: list[Problem] = []
    for name in ("path", "train", "validation", "test"):
        text, path = getattr(corpus, name), f"data.corpus.{name}"
        if text is None or not examined.is_sound(*path.split(".")):
            continue
        found[name], exists = find_file(draft, path, text)
        if not exists:
            missing.append(missing_file(draft, path, text, "a file, folder or glob that exists"))
    data = config.data.model_copy(update={"corpus": corpus.model_copy(update=found)})
    return config.model_copy(update={"data": data}), missing

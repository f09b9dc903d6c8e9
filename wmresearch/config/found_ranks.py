"""The ranks that another run found, for a run that starts from them."""

from __future__ import annotations

import json

from wmresearch.config.draft import Draft, find_file
from wmresearch.config.dynamic_rank import DynamicRankConfig
from wmresearch.config.problems import Problem
from wmresearch.config.run import RunConfig
from wmresearch.config.validation import examine, shown

KEY = "model.head_output.ranks_from"
FILE = "ranks.jsonl"
"""In a run's directory: a line for each cut, with `ranks` for each layer and key/value head."""


def needs_ranks(config: RunConfig) -> bool:
    """Whether ranks are to be taken from a run, and are not yet."""
    chosen = config.model.head_output
    return isinstance(chosen, DynamicRankConfig) and chosen.ranks_from is not None and chosen.ranks is None


def with_found_ranks(config: RunConfig, draft: Draft) -> tuple[RunConfig, list[Problem]]:
    """The config with `ranks` as the last cut of the run in `ranks_from` left them; the run's path made absolute."""
    chosen = config.model.head_output
    assert isinstance(chosen, DynamicRankConfig)
    assert chosen.ranks_from is not None
    path, _ = find_file(draft, KEY, chosen.ranks_from)
    expected = f"the directory of a run whose heads found their ranks (with a {FILE})"
    try:
        with open(f"{path}/{FILE}", encoding="utf-8") as file:  # noqa: PTH123
            ranks = json.loads(file.read().splitlines()[-1])["ranks"]
    except (OSError, ValueError, LookupError):
        return config, [Problem(*draft.place(KEY), shown(chosen.ranks_from), expected, f"looked at {path}")]
    found = chosen.model_copy(update={"ranks": tuple(map(tuple, ranks)), "ranks_from": path})
    config = config.model_copy(update={"model": config.model.model_copy(update={"head_output": found})})
    problems = examine(RunConfig, config.model_dump(mode="json"), draft.place).problems
    if problems:
        said = ", ".join(map(str, map(list, ranks)))
        problems = [Problem(*draft.place(KEY), f"{shown(chosen.ranks_from)}: ranks {said}", problems[0].expected)]
    return config, problems

"""Asks the file of a head output of the user's own what is wrong; JAX is imported only where a config has one."""

from __future__ import annotations

from wmresearch.config import Problem, RunConfig
from wmresearch.config.validation import Place


def ask_custom(config: RunConfig, place: Place) -> list[Problem]:
    """For `load_run` and `load_sweep`: problems of the file and of its settings, at the places of the settings."""
    from wmresearch.head_output.custom import custom_problems

    return custom_problems(config, place)

"""Random keys as pure functions of seed, purpose and step: no generator has to be saved."""

from __future__ import annotations

import enum

import jax
from jaxtyping import Array, Int, PRNGKeyArray


class Purpose(enum.IntEnum):
    """What a key is for. Numbers are part of a run's result: never reuse one."""

    INITIALIZATION = 0
    DROPOUT = 1
    MASKS = 2
    RANKS = 3


def purpose_key(seed: int, purpose: Purpose) -> PRNGKeyArray:
    """fold_in(seed, purpose)."""
    return jax.random.fold_in(jax.random.key(seed), purpose)


def step_key(key: PRNGKeyArray, step: Int[Array, ""]) -> PRNGKeyArray:
    """fold_in(fold_in(seed, purpose), step)."""
    return jax.random.fold_in(key, step)

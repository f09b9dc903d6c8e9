"""Functions that are compiled once, by whichever thread comes to them first: by a call, or ahead of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

import jax

P = ParamSpec("P")
T = TypeVar("T")


class Compiling(Generic[P, T]):
    """A function whose first call compiles, and which can be compiled before.

    `ahead` compiles: it takes what a call does, of which arrays may be shapes and types. Without it only a call does.
    Threads that call at once compile once.
    """

    def __init__(self, function: Callable[P, T], ahead: Callable[P, object] | None = None) -> None:
        self.function, self._ahead = function, ahead
        self._lock, self._compiled = threading.Lock(), False

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> T:
        if self._compiled:
            return self.function(*arguments, **named)
        with self._lock:
            found = self.function(*arguments, **named)
            self._compiled = True
        return found

    def compile(self, *arguments: P.args, **named: P.kwargs) -> None:
        """Compiles it, unless that is done or a call is at it."""
        if self._ahead is None or self._compiled or not self._lock.acquire(blocking=False):
            return
        try:
            self._ahead(*arguments, **named)
            self._compiled = True
        finally:
            self._lock.release()


def compile_for(function: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> None:
    """Compiles a function that `jax.jit` made, as a call with these would, of which arrays may be shapes and types."""
    assert isinstance(function, jax.stages.Wrapped)
    function.lower(*arguments, **named).compile()


def compiling(function: Callable[P, T]) -> Compiling[P, T]:
    """Of a function that `jax.jit` made."""
    return Compiling(function, lambda *arguments, **named: compile_for(function, *arguments, **named))

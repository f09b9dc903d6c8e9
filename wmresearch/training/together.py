"""What the processes of a run decide together: whether it is trained, and when it stops."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TypeVar

from wmresearch.config import ConfigError
from wmresearch.parallel.agreement import gathered, make_largest, several
from wmresearch.training.interruption import StopRequest
from wmresearch.training.run_lock import RunBusyError

T = TypeVar("T")
_EXIT_CODES: dict[type[BaseException], int] = {ConfigError: 2}


class RefusedElsewhereError(Exception):
    """Another process of the run refused to train it."""

    def __init__(self, process: int, reason: str, exit_code: int) -> None:
        super().__init__(f"process {process} refused: {reason}")
        self.exit_code = exit_code
        """That process's."""


def unanimous(check: Callable[[], T]) -> T:
    """What a check gives that every process makes.

    Raises:
        RefusedElsewhereError: it raised in another process.
        BaseException: what it raised in this one.
    """
    if not several():
        return check()
    raised: BaseException | None = None
    try:
        found = check()
    except BaseException as error:  # whatever it is, the others have to hear of it
        raised = error
    refusals = gathered(None if raised is None else (_line(raised), _EXIT_CODES.get(type(raised), 1)))
    if raised is not None:
        raise raised
    for process, refusal in enumerate(refusals):
        if refusal is not None:
            raise RefusedElsewhereError(process, *refusal)
    return found


def _line(error: BaseException) -> str:
    text = str(error) if isinstance(error, ConfigError | RunBusyError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:500]


def make_ask(stop: StopRequest) -> Callable[[], Callable[[], bool]]:
    """A function by which all processes ask each other, before they dispatch, whether one was told to stop.

    What it returns gives the answer, which is the same in all, and makes the request this process's too. It does not
    wait for what was dispatched after the question. A process alone hears what comes until it listens.
    """
    if not several():
        return lambda: lambda: stop.signal is not None
    largest = make_largest()

    def ask() -> Callable[[], bool]:
        answer = largest(0 if stop.signal is None else signal.Signals[stop.signal].value)

        def stopping() -> bool:
            number = answer()
            if number:
                stop.signal = signal.Signals(number).name
            return number > 0

        return stopping

    return ask

"""A request to stop (Ctrl-C, SIGTERM, a cluster's warning) that lets the work in hand end first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

PREEMPTED_EXIT_CODE = 75
"""EX_TEMPFAIL: start again to go on."""

UNWAITED = "compiling ahead"
"""Name of a thread whose work a process that ends has no use for."""


@dataclass
class StopRequest:
    """Set by the first signal; a second SIGINT interrupts at once."""

    signal: str | None = None


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""The last two are what SLURM is asked to send some time before the end (`--signal=USR1@120`)."""


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Within the block these signals only set the request. Outside the main thread nothing changes."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        if request.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = signal.Signals(number).name

    old = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield request
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)

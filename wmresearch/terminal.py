"""What a person sees of long work and of errors, all on stderr.

Work is one live line in a terminal, and a line every few seconds in a log.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOG_SECONDS = 10.0


class ProgressLine:
    """A line that is rewritten in place in a terminal, and written anew now and then elsewhere."""

    def __init__(self, log_seconds: float = LOG_SECONDS) -> None:
        self._live = sys.stderr.isatty()
        self._log_seconds = log_seconds
        self._written = 0.0
        self._last = ""

    def update(self, text: str, *, force: bool = False) -> None:
        """Shows a new state of the work; `force` writes it to a log at once."""
        if text == self._last:
            return
        now = time.monotonic()
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            cut = text if len(text) <= width else text[: width - 1] + "…"
            sys.stderr.write(f"\r\x1b[2K{cut}")
        elif force or now - self._written >= self._log_seconds:
            sys.stderr.write(text + "\n")
            self._written = now
        else:
            return
        self._last = text
        sys.stderr.flush()

    def say(self, text: str) -> None:
        """A line that stays."""
        sys.stderr.write(("\r\x1b[2K" if self._live else "") + text + "\n")
        sys.stderr.flush()
        self._last = ""

    def close(self) -> None:
        """Leaves the last state standing."""
        if self._live and self._last:
            sys.stderr.write("\n")
            sys.stderr.flush()


@contextmanager
def only_results_on_stdout() -> Iterator[None]:
    """Within the block what is written to standard output goes to standard error, also by libraries in other languages.

    Those by which JAX connects processes on CPUs greet each other there.
    """
    sys.stdout.flush()
    results = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(results, 1)
        os.close(results)


def hide_callbacks() -> None:
    """From now on no traceback is printed for each file that was being written when another could not be.

    tensorstore calls back to orbax, which waits no more, and prints what that raises, on whatever thread it is.
    """
    original = sys.unraisablehook

    def hook(error: sys.UnraisableHookArgs) -> None:
        if str(error.exc_value) != "Event loop is closed":
            original(error)

    sys.unraisablehook = hook


def leave_others(error: Exception) -> None:
    """Explains an error that the other processes of a run do not share, and ends this one without them."""
    from wmresearch.parallel.agreement import FailedAmongOthersError, leave
    from wmresearch.parallel.processes import NotConnectedError

    if isinstance(error, FailedAmongOthersError):
        cause = error.__cause__
        assert cause is not None
        if error.elsewhere is not None:
            print(f"wm: {error.elsewhere}", file=sys.stderr)
            leave(1)
        code = explain(cause)
        if code is None:
            traceback.print_exception(cause)
        leave(code or 1)
    if isinstance(error, NotConnectedError):
        leave(explain(error) or 2)


def explain(error: BaseException) -> int | None:
    """Prints an error that has a plain message, and gives its exit code; None for a bug."""
    from wmresearch.config import ConfigError

    if isinstance(error, ConfigError):
        n = len(error.problems)
        print(f"wm: {n} problem{'s' * (n > 1)} with the request", file=sys.stderr)
        for problem in error.problems:
            print(f"\n{problem}", file=sys.stderr)
        return 2
    from wmresearch.training.run_lock import RunBusyError

    if isinstance(error, RunBusyError):
        print(f"wm: {error}", file=sys.stderr)
        return 1
    if isinstance(error, OSError):
        return _explain_storage(error)
    from wmresearch.training.together import RefusedElsewhereError

    if isinstance(error, RefusedElsewhereError):
        print(f"wm: {error}", file=sys.stderr)
        return error.exit_code
    return None


def _explain_storage(error: OSError) -> int | None:
    """The same for a full disk, and for what this user may not write or read."""
    from wmresearch.reports.numbers import memory
    from wmresearch.training.files import CLOSED, FULL

    if error.errno not in (*FULL, *CLOSED) or error.filename is None:
        return None
    path, room = Path(os.fsdecode(error.filename)).absolute(), ""
    with suppress(OSError):
        there = next(folder for folder in (path, *path.parents) if folder.exists())
        usage = shutil.disk_usage(there)
        if error.errno in FULL:
            room = f" ({memory(usage.free)} of {memory(usage.total)} are free)"
    todo = "Make room there" if error.errno in FULL else "Let this user write there"
    print(f"wm: {path}: {error.strerror}{room}", file=sys.stderr)
    print(f"{todo}, then give the same command again: a run goes on from its newest checkpoint.", file=sys.stderr)
    return 1

"""What a person sees of long work: one live line in a terminal, a line every few seconds in a log. All on stderr."""

from __future__ import annotations

import shutil
import sys
import time

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

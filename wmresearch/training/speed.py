"""How fast a run goes and how long it still takes."""

from __future__ import annotations

import statistics
import time


class Speed:
    """Tokens a second: the median over dispatches of the last ones' own time, the first (compilation) left out."""

    def __init__(self, tokens_per_step: int) -> None:
        self._tokens_per_step = tokens_per_step
        self._rates: list[float] = []
        self._started: float | None = None
        self._warm = False

    def restart(self) -> None:
        """What came since the last mark was not training (an evaluation, a save)."""
        self._started = time.perf_counter()

    def mark(self, steps: int) -> None:
        """So many steps have ended since the last mark."""
        now = time.perf_counter()
        if self._started is not None and self._warm:
            self._rates.append(steps * self._tokens_per_step / (now - self._started))
        self._warm = True
        self._started = now

    @property
    def tokens_per_second(self) -> float | None:
        return statistics.median(self._rates) if self._rates else None

    def seconds_left(self, steps: int) -> float | None:
        """Time for so many more steps, evaluations not counted."""
        rate = self.tokens_per_second
        return None if rate is None else steps * self._tokens_per_step / rate

"""What is wrong with a request, said so that it can be mended: where, what was found, what was expected."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a config.

    `source` names the file (or "command line"), `path` the dotted key in it, `value` what stands there as the user
    would write it, `expected` what should stand there, `hint` what to do next (the nearest valid name, for instance).
    """

    source: str
    path: str
    value: str
    expected: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.source}: {self.path}" if self.path else self.source
        found = f" = {self.value}" if self.value else ""
        text = f"{where}{found}\n    expected {self.expected}" + (f"\n    {self.hint}" if self.hint else "")
        return text.encode("utf-8", "backslashreplace").decode()  # bytes of the command line that are no UTF-8


class ConfigError(Exception):
    """The request was wrong. Carries every problem found, not only the first."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(dict.fromkeys(problems))
        super().__init__("\n".join(map(str, self.problems)))


def nearest(name: str, valid: Iterable[str]) -> str:
    """A hint, "did you mean 'x'?", for the closest of the valid names, else the list of them all."""
    names = list(valid)
    folded = {valid_name.casefold().replace("-", "_"): valid_name for valid_name in names}
    close = difflib.get_close_matches(name[:100].casefold().replace("-", "_"), folded, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{folded[close[0]]}'?"
    return f"valid names: {', '.join(names)}" if names else ""

"""What the pages of all benchmarks have in common: where they were measured, and how they are kept."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np


def measured_by(script: str, dtype: str = "float32") -> str:
    """The command, the machine and jax's version."""
    device = jax.devices()[0].device_kind
    where = f"{platform.machine()}, {os.cpu_count()} cores" if jax.default_backend() == "cpu" else device
    return f"`python benchmarks/{script}` on {where}, jax {jax.__version__}, {dtype}"


def load() -> str:
    """How busy the machine is now."""
    return f"Load of the machine as it began: {os.getloadavg()[0]:.1f}."


def spread(seconds: Sequence[float]) -> str:
    """The median and the middle half, in milliseconds."""
    low, median, high = 1e3 * np.quantile(seconds, (0.25, 0.5, 0.75))
    return f"{median:.1f} ({low:.1f}–{high:.1f})"


def say(text: str) -> None:
    """Tells a waiting person what goes on."""
    print(text, file=sys.stderr, flush=True)


def put_out(page: list[str], out: Path | None) -> None:
    """Prints the page, and writes it to a file whole or not at all."""
    text = "\n".join(page) + "\n"
    print(text, end="")
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        part = out.with_name(out.name + ".part")
        part.write_text(text, encoding="utf-8")
        part.replace(out)

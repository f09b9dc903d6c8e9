"""What the pages of all benchmarks have in common: where they were measured, and how they are kept."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import jax


def measured_by(script: str) -> str:
    """The command, the machine and jax's version."""
    where = f"{platform.machine()}, {os.cpu_count()} cores" if jax.default_backend() == "cpu" else str(jax.devices()[0])
    return f"`python benchmarks/{script}` on {where}, jax {jax.__version__}, float32"


def load() -> str:
    """How busy the machine is now."""
    return f"Load of the machine as it began: {os.getloadavg()[0]:.1f}."


def put_out(page: list[str], out: Path | None) -> None:
    """Prints the page, and writes it to a file whole or not at all."""
    text = "\n".join(page) + "\n"
    print(text, end="")
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        part = out.with_name(out.name + ".part")
        part.write_text(text, encoding="utf-8")
        part.replace(out)

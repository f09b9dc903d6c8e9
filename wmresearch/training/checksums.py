"""Sums of a folder's files, by which damage is found: a flipped byte, a file that is gone."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TypeAlias

Sums: TypeAlias = dict[str, str]
"""Path in the folder → BLAKE2b of the file."""


def sums_of(folder: Path) -> Sums:
    """Of all files in a folder and those within it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _sum(path) for path in files}


def damage(folder: Path, sums: Sums) -> str | None:
    """What is wrong with a folder that had these sums, in a few words; None: nothing."""
    for name, wanted in sums.items():
        path = folder / name
        try:
            found = _sum(path)
        except OSError as error:
            return f"{name}: {error.strerror or error}"
        if found != wanted:
            return f"{name} has changed since it was written"
    return None


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]

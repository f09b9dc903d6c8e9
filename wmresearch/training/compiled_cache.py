"""Removes damaged entries from the folder of compiled programs.

A process that is killed while it writes an entry leaves half of one. JAX then warns at every start, compiles again, and
never replaces the file. So entries that are new since the last start are read once, and those that cannot be are
removed.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

_STAMP = ".checked"


def remove_damaged(folder: Path) -> list[Path]:
    """The entries that were removed. A folder that is not there, or cannot be written, stays as it is."""
    stamp, removed = folder / _STAMP, []
    with suppress(OSError):
        checked = stamp.stat().st_mtime if stamp.exists() else 0.0
        new = [entry for entry in folder.glob("*-cache") if entry.stat().st_mtime >= checked]
        if not new:
            return []
        beginning = folder / f"{_STAMP}.new"
        beginning.touch()  # what is written while entries are read is looked at again next time
        for entry in new:
            if not _whole(entry.read_bytes()):
                entry.unlink(missing_ok=True)
                removed.append(entry)
        beginning.replace(stamp)
    return removed


def _whole(content: bytes) -> bool:
    decompress, failures = _compression()
    try:
        return bool(decompress(content))
    except failures:
        return False


def _compression() -> tuple[Callable[[bytes], bytes], tuple[type[Exception], ...]]:
    """What JAX packs entries with: the first of these that is there."""
    with suppress(ImportError):
        zstd: Any = importlib.import_module("compression.zstd")
        return zstd.decompress, (zstd.ZstdError,)
    with suppress(ImportError):
        zstandard: Any = importlib.import_module("zstandard")
        return zstandard.ZstdDecompressor().decompress, (zstandard.ZstdError,)
    return zlib.decompress, (zlib.error,)

"""Small files written whole or not at all, and what keeps them from being written."""

from __future__ import annotations

import errno
import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT)
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)
"""Numbers of an OSError: there is no room, or this user may not write there."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within the block an OSError names the path: that of a write to an open file names none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes beside the target, then renames: a reader sees the old file or the new one, never half of one."""
    with writing(path):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def write_json(path: Path, value: Any) -> None:
    """A value as strict JSON, atomically; numbers that are not finite become null."""
    write_atomically(path, json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The value in a JSON file; None where there is no such file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None


def finite(value: Any) -> Any:
    """A copy in which every number that is not finite is None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def json_line(value: Mapping[str, Any]) -> str:
    """One line of a .jsonl file."""
    return json.dumps(finite(value), ensure_ascii=False, allow_nan=False) + "\n"

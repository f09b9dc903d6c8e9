"""Small files written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes beside the target, then renames: a reader sees the old file or the new one, never half of one."""
    data = content if isinstance(content, bytes) else content.encode()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
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

"""The user's cache folder, and folders in it that are made once: whole or not at all, by one process at a time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from wmresearch.config import ConfigError, Problem

Report = Callable[[str], None]
"""Told in words what is being done, for a progress line."""


def unheard(message: str) -> None:
    """The report of a caller that wants none."""
    del message


def cache_folder() -> Path:
    """`WMRESEARCH_CACHE`, else `XDG_CACHE_HOME/wmresearch`, else `~/.cache/wmresearch`. It need not exist yet."""
    own = os.environ.get("WMRESEARCH_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    # the XDG base directory specification says that a relative path is to be ignored
    base = Path(xdg) if xdg and Path(xdg).is_absolute() else Path("~/.cache").expanduser()
    return base / "wmresearch"


def build_once(folder: Path, build: Callable[[Path], None], report: Report | None = None) -> None:
    """Makes `folder` by `build(an empty folder)` unless it is there. Afterwards it is there, whole.

    Processes that want the same folder wait for the first. One that is killed in the middle leaves a partial folder,
    which the next one removes; the system takes its lock away.

    Raises:
        ConfigError: the place cannot be written.
    """
    if folder.is_dir():
        return
    partial = folder.with_name(f".{folder.name}.partial")
    with _held(folder.with_name(f".{folder.name}.lock"), report):
        if folder.is_dir():
            return
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            build(partial)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _held(path: Path, report: Report | None) -> AbstractContextManager[object]:
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return lock.acquire(timeout=0)
        except Timeout:
            if report:
                report("waiting for another process that is preparing the same data")
            return lock.acquire()
    except OSError as error:
        hint = f"{error.strerror or error}; set WMRESEARCH_CACHE to another folder"
        raise ConfigError([Problem(str(path.parent), "", "", "a cache folder that can be written", hint)]) from None

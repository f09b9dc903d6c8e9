"""Holds a run's folder for one process, on one machine or on several that share a file system.

The kernel's lock (flock) is free as soon as its process is dead. Between machines it may not be: some file systems keep
it for a while, others give each machine its own. So the holder also has a file that it renews; where another machine's
is not renewed for `STALE_SECONDS`, its process is taken for dead.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from wmresearch.training.files import write_json

RENEW_SECONDS = 5.0
STALE_SECONDS = 30.0
_HOLDER = ".holder"


class RunBusyError(Exception):
    """Another process holds the run directory."""


@contextmanager
def hold(folder: Path, lost: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds a folder that is there, for as long as the block lasts.

    Waits where another machine's process may be dead, until it is taken for that or shows that it is not. `lost` is
    called, on another thread, if the folder is held by somebody else after all: this machine was silent for too long.

    Raises:
        RunBusyError: another process holds it.
    """
    lock, holder = FileLock(folder / ".lock"), folder / _HOLDER
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise _busy(folder, _read(holder)) from None
    try:
        _wait_for_another_machine(folder, holder)
        token = uuid.uuid4().hex
        write_json(holder, {"process": os.getpid(), "host": socket.gethostname(), "token": token})
        ended = threading.Event()
        renewing = threading.Thread(target=_renew, args=(holder, token, ended, lost), daemon=True)
        renewing.start()
        try:
            yield
        finally:
            ended.set()
            renewing.join()
            if _read(holder).get("token") == token:
                with suppress(OSError):  # the folder cannot be written any more, of which more is said elsewhere
                    holder.unlink()
    finally:
        lock.release()


def _wait_for_another_machine(folder: Path, holder: Path) -> None:
    """Returns when nobody else holds the folder as far as the holder's file says."""
    first = _read(holder)
    if not first or first["host"] == socket.gethostname():  # whose lock the kernel has given to us
        return
    seen = holder.stat().st_mtime
    while _clock_of(folder) - seen < STALE_SECONDS:
        time.sleep(0.5)
        now = _read(holder)
        if not now:
            return
        if now != first or holder.stat().st_mtime != seen:
            raise _busy(folder, now)


def _clock_of(folder: Path) -> float:
    """The time by the clock of the file system, with which files there are marked."""
    mark = folder / f".clock.{uuid.uuid4().hex}"
    mark.touch()
    try:
        return mark.stat().st_mtime
    finally:
        mark.unlink(missing_ok=True)


def _renew(holder: Path, token: str, ended: threading.Event, lost: Callable[[], None]) -> None:
    while not ended.wait(RENEW_SECONDS):
        if _read(holder).get("token") != token:
            lost()
            return
        with suppress(OSError):  # a full disk or a server that is away for a moment
            os.utime(holder)


def _read(holder: Path) -> dict[str, Any]:
    """What the file says; nothing where there is none, or half of one."""
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(holder.read_text(encoding="utf-8"))
        return found
    return {}


def _busy(folder: Path, holder: dict[str, Any]) -> RunBusyError:
    who = f"process {holder['process']} on {holder['host']}" if holder else "another process"
    return RunBusyError(f"{folder}: {who} is working on this run; wait for it or stop it")

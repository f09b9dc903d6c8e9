"""Uploads what runs recorded for W&B offline; what was lost of it is recorded again from their directories."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wmresearch.config import ConfigError, Problem
from wmresearch.config.training import WandbConfig
from wmresearch.sweeps.store import read_plan
from wmresearch.training.run_directory import RunDirectory, RunLabels
from wmresearch.training.run_lock import RunBusyError
from wmresearch.training.trackers import make_tracker, trouble_online

SILENT_SECONDS = 300.0
"""Without a run that was uploaded, after which W&B is given up."""

RecordState = Literal["uploaded", "recorded", "lost", "pending"]


@dataclass(frozen=True)
class Record:
    """What W&B has, or could be given, of one run.

    `uploaded`: recorded online, or sent by `wandb sync`, which leaves a file that says so; `recorded`: offline;
    `lost`: there is nothing, or the run's summary has changed since; `pending`: the run has not begun.
    """

    run: RunDirectory
    state: RecordState
    folder: Path | None = None

    @property
    def name(self) -> str:
        return self.run.path.name


@dataclass(frozen=True)
class Sync:
    """What came of it: run folders' names. Those left can be tried again; why they are left is said once."""

    uploaded: list[str]
    before: list[str]
    rebuilt: list[str]
    training: list[str]
    left: list[str]
    trouble: str | None


def read_records(directory: Path) -> list[Record]:
    """Of the runs of a sweep, or of the one run, in a directory.

    Raises:
        ConfigError: there is neither.
    """
    if (directory / "config.yaml").exists():
        return [_record(RunDirectory(directory))]
    if not (directory / "sweep.json").exists():
        raise ConfigError([Problem(str(directory), "", "", "the directory of a sweep, or of one run")])
    return [_record(RunDirectory(directory / run["run_id"])) for run in read_plan(directory)["runs"]]


def _record(run: RunDirectory) -> Record:
    if run.state() == "pending":
        return Record(run, "pending")
    folders = sorted((run.path / "wandb").glob("*run-*-*"), key=lambda path: path.name.removeprefix("offline-"))
    if not folders:
        return Record(run, "lost")
    newest = folders[-1]
    files = list(newest.glob("*.wandb"))
    if newest.name.startswith("run-") or (files and is_uploaded(newest)):
        return Record(run, "uploaded", newest)
    changed = (run.path / "summary.json").stat().st_mtime
    kept = files and files[0].stat().st_mtime >= changed
    return Record(run, "recorded" if kept else "lost", newest)


def is_uploaded(folder: Path) -> bool:
    """Whether `wandb sync` has left its mark."""
    return any(folder.glob("*.wandb.synced"))


def rebuild(run: RunDirectory) -> Path:
    """Records a run for W&B offline, as it would have been while it trained, and returns the new folder.

    Raises:
        RunBusyError: it is being trained.
        OSError: its folder cannot be written.
    """
    from wmresearch.training.mirror import identity_of, tell_again  # with JAX, which an upload does not need

    said: list[str] = []
    with run.locked():
        config = run.config()
        summary = run.summary()
        named = {key: summary[key] for key in ("run_id", "sweep", "arm", "role", "settings")}
        offline = WandbConfig(
            mode="offline", project=config.tracking.wandb.project, entity=config.tracking.wandb.entity
        )
        tracker = make_tracker(offline, identity_of(config, RunLabels(**named), run), run.path, warn=said.append)
        tell_again(tracker, config, run)
        tracker.finish(summary, exit_code=0 if summary["state"] == "finished" else 1)
    record = _record(run)
    if said or record.folder is None:
        raise OSError(said[0] if said else f"{run.path}: nothing was recorded")
    return record.folder


def sync(
    directory: Path,
    *,
    again: bool = False,
    report: Callable[[str], None] = lambda _: None,
    silent: float = SILENT_SECONDS,
) -> Sync:
    """Uploads what is not uploaded yet, or with `again` all; what is lost is recorded first.

    Started again it goes on with what is left: a run counts as uploaded when `wandb sync` has marked it.

    Raises:
        ConfigError: there is neither a sweep nor a run.
    """
    records = read_records(directory)
    before = [record.name for record in records if record.state == "uploaded" and not again]
    folders: dict[str, Path] = {}
    rebuilt: list[str] = []
    training: list[str] = []
    broken: dict[str, str] = {}
    for record in records:
        if record.state == "pending" or record.name in before:
            continue
        try:
            if record.folder is not None and record.state == "recorded":
                with record.run.locked():
                    folders[record.name] = record.folder
            else:
                report(f"recording {record.name} again from its directory")
                folders[record.name] = rebuild(record.run)
                rebuilt.append(record.name)
        except RunBusyError:
            training.append(record.name)
        except OSError as error:
            broken[record.name] = str(error)
    trouble = _upload(folders, report, silent) if folders else None
    uploaded = [name for name, folder in folders.items() if is_uploaded(folder)]
    left = [name for name in folders if name not in uploaded] + list(broken)
    return Sync(uploaded, before, rebuilt, training, left, trouble or next(iter(broken.values()), None))


def trouble_with_server() -> str | None:
    """Why nothing can be sent to W&B; None where it can."""
    import wandb

    return trouble_online(wandb.setup(wandb.Settings(silent=True)).settings.base_url)


def _upload(folders: dict[str, Path], report: Callable[[str], None], silent: float) -> str | None:
    """Runs `wandb sync` until it ends, or has done nothing for long; why something is left, where something is."""
    trouble = trouble_with_server()
    if trouble is not None:
        return trouble
    command = [sys.executable, "-m", "wandb", "sync", *map(str, folders.values())]
    done, since = -1, time.monotonic()
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output) as process,
    ):
        while process.poll() is None:
            now = sum(map(is_uploaded, folders.values()))
            if now != done:
                done, since = now, time.monotonic()
            report(f"{done} of {len(folders)} runs uploaded")
            if time.monotonic() - since > silent:
                process.terminate()
                return f"W&B took no run for {silent:g} s"
            time.sleep(0.2)
        output.seek(0)
        said = output.read().split("\n")
    return next((f"wandb sync says: {line.strip()}" for line in reversed(said) if line.strip()), None)

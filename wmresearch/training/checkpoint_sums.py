"""Finds checkpoints that were damaged after they were written, and those that a run's logs do not reach up to.

orbax renames a finished folder, so a checkpoint is there as a whole or not at all. What happens to it later, a flipped
byte or a file that is gone, is found by the sums of its files. They lie beside the checkpoints, with the number of
lines that each log had, and are written before the folder is renamed: there is no checkpoint without them. What is
damaged is set aside, never deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orbax.checkpoint.utils import TMP_DIR_SUFFIX

from wmresearch.training.checksums import damage, sums_of
from wmresearch.training.files import read_json, write_json

SUMS, DAMAGED = "checkpoint_sums", "damaged_checkpoints"


def record(checkpoints: Path, step: int, lines: Mapping[str, int]) -> None:
    """Writes the sums of a checkpoint that is about to be renamed, and drops those of checkpoints that are gone.

    Files that lie directly in its folder are left out: orbax's notes, which it writes later, and can do without.
    """
    sums = checkpoints.parent / SUMS
    sums.mkdir(exist_ok=True)
    for old in sums.glob("*.json"):
        if not (checkpoints / old.stem).is_dir():
            old.unlink(missing_ok=True)
    files = {name: found for name, found in sums_of(checkpoints / f"{step}{TMP_DIR_SUFFIX}").items() if "/" in name}
    write_json(sums / f"{step}.json", {"files": files, "lines": dict(lines)})


def set_damaged_aside(checkpoints: Path, lines: Mapping[str, int]) -> list[str]:
    """Leaves the newest checkpoint that is whole as the newest one, and says what became of those after it.

    `lines` are those that the logs have now. A checkpoint whose sums were deleted is taken to be whole.
    """
    said = []
    steps = [int(folder.name) for folder in checkpoints.glob("*") if folder.name.isdigit()]
    for step in sorted(steps, reverse=True):
        known: dict[str, Any] | None = read_json(checkpoints.parent / SUMS / f"{step}.json")
        if known is None:
            break
        wrong = damage(checkpoints / str(step), known["files"])
        short = [name for name, count in known["lines"].items() if lines.get(name, 0) < count]
        if wrong is None and not short:
            break
        aside = _free(checkpoints.parent / DAMAGED, str(step))
        aside.parent.mkdir(exist_ok=True)
        (checkpoints / str(step)).rename(aside)
        why = wrong or f"{short[0]} was cut off before it"
        said.append(f"checkpoint {step} is set aside as {aside.relative_to(checkpoints.parent)}: {why}")
    return said


def _free(folder: Path, name: str) -> Path:
    """A path that is not there yet."""
    tries = (folder / (f"{name}-{number}" if number else name) for number in range(1000))
    return next(path for path in tries if not path.exists())

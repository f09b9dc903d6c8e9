"""A sweep that is really run, once for all tests of a session that look at it; and `wm`, in this process."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from tests.training.examples import TEXT, tiny
from wmresearch.cli import main
from wmresearch.config import yaml_text
from wmresearch.data import cache_folder

ARMS = {
    "W_o": {"model.head_output": {"kind": "standard"}},
    "W_M rank 3": {"model.head_output": {"kind": "factorized", "rank": 3}},
    "decay 1": {"optimizer.weight_decay": 1.0},
}
SEEDS = [0, 1]


def write_sweep(folder: Path, name: str = "mini", base: dict | None = None, **changes) -> Path:
    """Writes a text, a base config and a sweep of two arms with two seeds into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    data = base or tiny(Path("text.txt"))
    (folder / "base.yaml").write_text(yaml_text.write(data), encoding="utf-8")
    arms = {arm: ARMS[arm] for arm in ("W_o", "W_M rank 3")}
    sweep = {"name": name, "base": "base.yaml", "baseline": "W_o", "arms": arms, "seeds": SEEDS} | changes
    sweep["baseline"] = next(iter(sweep["arms"]))
    (folder / "sweep.yaml").write_text(yaml_text.write(sweep), encoding="utf-8")
    return folder / "sweep.yaml"


def start_wm(*arguments: object, **more) -> subprocess.Popen:
    """`wm` as a process."""
    command = [sys.executable, "-m", "wmresearch.cli", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def wm(capfd, *arguments: object) -> tuple[int, str, str]:
    """`wm` in this process: exit code, standard output, standard error."""
    capfd.readouterr()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["wm", *map(str, arguments)])
        main()
    return (ended.value.code or 0, *capfd.readouterr())


def run_once(name: str, write: Callable[[Path], Path]) -> Path:
    """The folder of a sweep that is run by `wm sweep` once for all tests of a session.

    `sweep.yaml` and what it needs, `runs` (the sweep's directory), and `out`, `err`, `code` of the command.
    """
    folder = cache_folder() / name
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):  # several workers of pytest share one
        if not (folder / "code").exists():
            process = start_wm("sweep", write(folder), "--dir", folder / "runs", cwd=folder)
            out, err = process.communicate(timeout=600)
            (folder / "out").write_text(out, encoding="utf-8")
            (folder / "err").write_text(err, encoding="utf-8")
            (folder / "code").write_text(str(process.returncode), encoding="utf-8")
    return folder


OFFLINE = {"tracking": {"wandb": {"mode": "offline"}}}


def mini_sweep() -> Path:
    """A sweep of three arms with two seeds, run with W&B offline."""
    base = tiny(Path("text.txt")) | OFFLINE
    return run_once("mini-sweep", lambda folder: write_sweep(folder, base=base, arms=ARMS, seeds=SEEDS))


TWENTY = {
    "W_o": {},
    "gates": {
        "model.head_output": {
            "kind": "dynamic_rank", "rank": 4, "method": "hard_concrete", "total_rank": 4, "fine_tune_steps": 2,
        },
        "penalties": [{"kind": "nuclear", "strength": 1e-3}],
    },
    "entries": {
        "model.head_output": {"kind": "sparse", "density": 0.5, "method": {"kind": "set", "every": 2}},
        "optimizer.skip_spikes": {"factor": 100.0},
    },
    "too fast": {"optimizer.learning_rate": 1e30},
}  # fmt: skip
"""Arms that log all there is to log, and one that diverges."""


def twenty_runs() -> Path:
    """Four arms with five seeds, four steps each, run with W&B offline."""
    base = tiny(Path("text.txt"), steps=4) | OFFLINE
    base["training"] |= {"evaluate_every": 2, "log_every": 2, "steps_per_dispatch": 2, "checkpoint_every": None}
    return run_once("twenty-runs", lambda folder: write_sweep(folder, "twenty", base, arms=TWENTY, seeds=[*range(5)]))


def trainings(directory: Path) -> dict[str, int]:
    """Run → how often it was begun, as the folders that W&B made offline tell."""
    return {path.parent.name: len(list(path.rglob("offline-run-*"))) for path in directory.glob("*/wandb")}


def tuned_sweep() -> Path:
    """The folder of a sweep that tunes and matches, as `mini_sweep`; both arms' best rates lie on an edge at first."""
    folder = cache_folder() / "tuned-sweep"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / "code").exists():
            base = tiny(Path("text.txt"), 6)
            base["training"] |= {"evaluate_every": 3, "diagnostics": False}
            rate = "optimizer.learning_rate"
            arms = {"W_o": ARMS["W_o"], "W_M rank 3": ARMS["W_M rank 3"] | {"tune": {rate: [2e-3, 4e-3]}}}
            tune = {"keys": {rate: [5e-4, 1e-3]}, "extend": 1}
            more = {"tune": tune, "seeds": {"tune": [7], "report": SEEDS}, "match": "parameters", "reach": True}
            file = write_sweep(folder, "tuned", base, arms=arms, **more)
            process = start_wm("sweep", file, "--dir", folder / "runs", cwd=folder)
            out, err = process.communicate(timeout=600)
            (folder / "out").write_text(out + err, encoding="utf-8")
            (folder / "code").write_text(str(process.returncode), encoding="utf-8")
    return folder

"""Sweep directories as the sweeps room leaves them, written file by file."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.sweeps.mini import mini_sweep, start_wm
from tests.training.examples import TEXT, config
from wmresearch.data import cache_folder
from wmresearch.reports.table import build_table, render

PACKAGES = {"jax": "0.10.2", "flax": "0.12.8", "numpy": "2.4.6"}


class SweepFolder:
    """A directory with a plan, to which runs are added one at a time."""

    BASE = {0: 1.90, 1: 1.93, 2: 1.88}
    RANK = {0: 1.915, 1: 1.938, 2: 1.901}
    """Validation losses by seed, made up."""

    def __init__(
        self, path: Path, arms: list[str], seeds: list[int], grid: dict[str, list[Any]], baseline: str, name: str
    ) -> None:
        self.path = path
        self.plan: dict[str, Any] = {"name": name, "baseline": baseline, "arms": arms, "grid": grid, "seeds": seeds}
        settings = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
        self.plan["runs"] = [
            {"run_id": f"{i:012x}", "arm": arm, "settings": setting, "seed": seed, "role": "report"}
            for i, (arm, setting, seed) in enumerate(product(arms, settings, seeds))
        ]
        self.write_plan()

    def write_plan(self) -> None:
        self.path.mkdir(exist_ok=True)
        self._write(self.path / "sweep.json", self.plan)

    def planned(self, arm: str, seed: int, **match: Any) -> dict[str, Any]:
        return next(
            r
            for r in self.plan["runs"]
            if r["arm"] == arm and r["seed"] == seed and r["settings"].items() >= match.items()
        )

    def run(self, arm: str, seed: int, loss: float | None = 2.0, /, at: dict | None = None, **changes: Any) -> Path:
        """Writes what one run leaves; `changes` go to its summary, `manifest={…}` to its manifest."""
        planned = self.planned(arm, seed, **(at or {}))
        folder = self.path / changes.pop("folder", planned["run_id"])
        folder.mkdir(exist_ok=True)
        manifest = {
            "run_id": planned["run_id"],
            "config_hash": planned["run_id"],
            "schema_version": 1,
            "commit": "0123456789abcdef0123456789abcdef01234567",
            "dirty": False,
            "python": "3.11.7",
            "packages": PACKAGES,
            "device": "cpu",
            "corpus_digest": "c0ffee" * 8,
            "corpus": "stdlib/small",
            "command": "wm sweep",
            "xla_flags": None,
        } | changes.pop("manifest", {})
        summary = {
            "run_id": planned["run_id"],
            "sweep": self.plan["name"],
            "arm": arm,
            "role": "report",
            "settings": planned["settings"],
            "seed": seed,
            "state": "finished",
            "reason": None,
            "step": 300,
            "train_loss": 1.9,
            "validation_loss": loss,
            "best_validation_loss": loss,
            "test_loss": loss and loss + 0.01,
            "bits_per_byte": loss and loss / math.log(2),
            "learning_rate": planned["settings"].get("optimizer.learning_rate", 1e-3),
            "corpus_digest": "c0ffee" * 8,
            "parameters": 827392,
            "head_output_parameters": 131072,
            "flops_per_token": 5.1e6,
            "tokens_per_second": 12345.6 + seed,
            "wall_seconds": 30.0,
        } | changes
        self._write(folder / "summary.json", summary)
        self._write(folder / "manifest.json", manifest)
        return folder

    def fill(self, losses: dict[str, dict[int, float]] | None = None, /, **changes: Any) -> None:
        """Writes finished runs: arm → seed → validation loss."""
        for arm, by_seed in (losses or {"W_o": self.BASE, "W_M rank 16": self.RANK}).items():
            for seed, loss in by_seed.items():
                self.run(arm, seed, loss, **changes)

    def table(self) -> dict[str, Any]:
        """The table as a strict reader of JSON gets it."""

        def refuse(name: str) -> None:
            raise AssertionError(f"{name} in JSON")

        return json.loads(render(build_table(self.path), "json"), parse_constant=refuse)

    def notes(self) -> str:
        return "\n".join(self.table()["manifest"]["notes"])

    @staticmethod
    def _write(path: Path, data: Any) -> None:
        path.write_text(json.dumps(data), encoding="utf-8")  # json.dumps writes NaN as NaN, as a careless writer would


@pytest.fixture
def sweep(tmp_path: Path):
    """Makes a sweep directory with a plan and no runs."""

    def make(arms=("W_o", "W_M rank 16"), seeds=(0, 1, 2), grid=None, baseline="W_o", name="quickstart") -> SweepFolder:
        grid = {"optimizer.learning_rate": [3e-3]} if grid is None else grid
        return SweepFolder(tmp_path / name, list(arms), list(seeds), grid, baseline, name)

    return make


@pytest.fixture(scope="session")
def report():
    """What `wm report` made of the sweep that was really run: (the sweep's directory, the page, standard error)."""
    runs = mini_sweep() / "runs"
    folder = cache_folder() / "mini-report"
    page, err = folder / "page.html", folder / "err"
    with FileLock(folder.with_suffix(".lock")):  # several workers of pytest share one
        if not err.exists():
            process = start_wm("report", runs, "--out", page)
            out, said = process.communicate(timeout=600)
            assert (process.returncode, out) == (0, f"{page}\n"), said
            err.write_text(said, encoding="utf-8")
    return runs, page, err.read_text(encoding="utf-8")


def _train(folder: Path, **changes: Any) -> tuple[Path, Any]:
    """A run of two layers with two heads that is really trained, and its config."""
    from wmresearch.training.loop import train

    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    chosen = config(folder / "text.txt", model__n_layers=2, **changes)
    train(chosen, folder / "run")
    return folder / "run", chosen


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """With checkpoints at steps 6 and 12, and its config."""
    head_output = {"kind": "factorized", "rank": 5}
    changes = {"model__head_output": head_output, "training__steps": 12, "training__checkpoint_every": 6}
    return _train(tmp_path_factory.mktemp("spectrum"), **changes)


@pytest.fixture(scope="session")
def other_run(tmp_path_factory):
    """The standard head output, with checkpoints at steps 4 and 8."""
    changes = {"training__steps": 8, "training__checkpoint_every": 4}
    return _train(tmp_path_factory.mktemp("other"), **changes)[0]


@pytest.fixture(scope="session")
def run_of_four_heads(tmp_path_factory):
    """With grouped values, biases, and learned weights that are far from their start."""
    changes = {"model__n_heads": 4, "model__n_kv_heads": 2, "training__steps": 8, "model__bias": True}
    return _train(tmp_path_factory.mktemp("four"), **changes, optimizer__learning_rate=0.03)[0]

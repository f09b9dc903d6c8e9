"""How long `wm table` and `wm report` take, and what they need: on a made-up sweep of many runs with long logs.

    python benchmarks/reports.py [--runs N ...] [--points N] [--folder FOLDER] [--out benchmarks/results/reports.md]

The directory is written as runs leave it: summaries, manifests, configs, metrics, diagnostics, spectra.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from page import load, measured_by, put_out, say

COMMANDS = ("table", "report")
_SEEDS, _RATES = 10, (1e-3, 2e-3, 3e-3, 6e-3, 1e-2)
_LAYERS, _HEADS, _RANK, _EVALUATIONS = 4, 8, 16, 20
_STATISTICS = (
    "copying", "effective_rank", "frobenius_norm", "imbalance", "nuclear_norm", "overlap", "r95", "spectral_norm",
    "stable_rank",
)  # fmt: skip


def write_sweep(folder: Path, runs: int, points: int) -> None:
    """A sweep of so many runs with so many logged steps each, all of them finished."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    arms = [f"arm {number}" for number in range(math.ceil(runs / (_SEEDS * len(_RATES))))]
    places = list(itertools.product(arms, _RATES, range(_SEEDS)))[:runs]
    planned = [
        {"run_id": f"{number:012x}", "arm": arm, "settings": {"optimizer.learning_rate": rate}, "seed": seed,
         "role": "report"}
        for number, (arm, rate, seed) in enumerate(places)
    ]  # fmt: skip
    plan = {
        "name": "many", "baseline": arms[0], "arms": arms, "grid": {"optimizer.learning_rate": _RATES},
        "seeds": list(range(_SEEDS)), "runs": planned,
    }  # fmt: skip
    (folder / "sweep.json").write_text(json.dumps(plan), encoding="utf-8")
    for run in planned:
        _write_run(folder / run["run_id"], run, points, rng)


def _write_run(folder: Path, run: dict[str, Any], points: int, rng: np.random.Generator) -> None:
    folder.mkdir(exist_ok=True)
    steps = 5 * np.arange(1, points + 1)
    curve = (1.8 + 2 * (1 + steps / 100) ** -0.6 + rng.normal(scale=0.02, size=points)).astype(np.float32)
    norms = rng.gamma(4, 0.2, size=points).astype(np.float32)
    lines = [
        json.dumps({"step": int(s), "gradient_norm": float(g), "learning_rate": 1e-3, "train_loss": float(c)}) + "\n"
        for s, g, c in zip(steps, norms, curve, strict=True)
    ]
    evaluations = np.linspace(0, steps[-1], _EVALUATIONS + 1).astype(int)
    losses = 1.8 + 2 * (1 + evaluations / 100) ** -0.6 + 0.01 * rng.normal(size=len(evaluations))
    lines += [
        json.dumps({"step": int(s), "validation_loss": float(v), "bits_per_byte": float(v) / 0.6931}) + "\n"
        for s, v in zip(evaluations[1:], losses[1:], strict=True)
    ]
    (folder / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "spectra").mkdir(exist_ok=True)
    diagnostics = []
    for step in evaluations:
        values = {name: rng.uniform(1, 9, size=(_LAYERS, _HEADS)).tolist() for name in _STATISTICS}
        diagnostics.append(json.dumps({"step": int(step), **values}) + "\n")
        data = io.BytesIO()
        sigma = -np.sort(-rng.gamma(1, 0.1, size=(_LAYERS, _HEADS, _RANK)).astype(np.float32), axis=-1)
        cosines = rng.uniform(-1, 1, size=(_LAYERS, _HEADS, _HEADS)).astype(np.float32)
        np.savez(data, singular_values=sigma, cosines=cosines)
        (folder / "spectra" / f"{step:08d}.npz").write_bytes(data.getvalue())
    (folder / "diagnostics.jsonl").write_text("".join(diagnostics), encoding="utf-8")
    summary = run | {
        "sweep": "many", "state": "finished", "reason": None, "step": int(steps[-1]), "train_loss": float(curve[-1]),
        "validation_loss": float(losses[-1]), "best_validation_loss": float(losses.min()),
        "test_loss": float(losses[-1]) + 0.01, "bits_per_byte": float(losses[-1]) / 0.6931,
        "corpus_digest": "c0ffee" * 8,
        "learning_rate": run["settings"]["optimizer.learning_rate"], "parameters": 827392 + 16 * int(run["arm"][4:]),
        "head_output_parameters": 131072, "head_output_nonzeros": 131072, "total_rank": None, "masked_dense": False,
        "flops_per_token": 5.1e6, "training_flops": 5.1e12, "tokens_per_second": 12345.6, "wall_seconds": 300.0,
    }  # fmt: skip
    manifest = {
        "run_id": run["run_id"], "config_hash": run["run_id"], "schema_version": 1, "commit": "0123456789abcdef" * 2,
        "dirty": False, "python": "3.11.7", "packages": {"jax": "0.10.2", "flax": "0.12.8"}, "device": "cpu",
        "corpus": "made up", "corpus_digest": "c0ffee" * 8, "command": ["wm", "sweep"], "xla_flags": None,
    }  # fmt: skip
    config = {"model": {"d_model": 64, "n_layers": _LAYERS, "head_output": {"kind": "factorized", "rank": _RANK}},
              "optimizer": {"kind": "adamw", "learning_rate": run["settings"]["optimizer.learning_rate"]},
              "seed": run["seed"]}  # fmt: skip
    for name, value in (("summary.json", summary), ("manifest.json", manifest), ("config.yaml", config)):
        (folder / name).write_text(json.dumps(value), encoding="utf-8")


def measure(*command: object) -> tuple[float, float, float]:
    """Seconds by the clock and of the processor, and MiB at most, of a process of its own."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "wmresearch.cli", *map(str, command)], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, command
    return time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument(
        "--folder", type=Path, help="where the sweeps are written and kept; a temporary one unless given"
    )
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    page = ["# Tables and pages of large sweeps", "", measured_by("reports.py"), load(), ""]
    page += ["| runs | steps logged | command | seconds | of the processor | MiB at most | page, MB |"]
    page += ["|---:|---:|---|---:|---:|---:|---:|"]
    with tempfile.TemporaryDirectory() as temporary:
        for runs in chosen.runs:
            folder = (chosen.folder or Path(temporary)) / f"{runs}_{chosen.points}"
            if not (folder / "sweep.json").exists():
                say(f"writing {runs} runs …")
                write_sweep(folder, runs, chosen.points)
            for command in COMMANDS:
                say(f"wm {command} …")
                seconds, processor, memory = measure(command, folder)
                size = (folder / "report" / "index.html").stat().st_size / 1e6 if command == "report" else None
                shown = "" if size is None else f"{size:.2f}"
                cells = [f"{runs:,}", f"{chosen.points:,}", f"`wm {command}`", f"{seconds:.1f}", f"{processor:.1f}"]
                page.append(f"| {' | '.join([*cells, f'{memory:,.0f}', shown])} |")
    page += ["", "Limits for 1,000 runs with 2,000 logged steps: 5 s for the table, 60 s and 1,024 MiB for the page."]
    put_out(page, chosen.out)


if __name__ == "__main__":
    main()

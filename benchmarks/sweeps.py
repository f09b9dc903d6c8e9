"""Runs an hour: 16 runs as a sweep, whose cohort shares one program, against 16 `wm train` processes.

    python benchmarks/sweeps.py [--size tiny small base] [--rounds N] [--out benchmarks/results/sweeps.md]

4 learning rates × 4 seeds. The processes are started as many at a time as there are cores, and all share a compilation
cache; each way begins with an empty one in each round. W&B offline and checkpoints are included. Ways take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from page import load, measured_by, put_out, say

from wmresearch.config import yaml_text
from wmresearch.data import load_corpus
from wmresearch.sweeps.plan import Plan, make_plan
from wmresearch.training import loop
from wmresearch.training.run_directory import RunDirectory

SIZES: dict[str, tuple[dict[str, int], int, int]] = {
    "smallest": ({"d_model": 16, "n_layers": 1, "n_heads": 2, "context": 16}, 4, 20),
    "tiny": ({"d_model": 32, "n_layers": 1, "n_heads": 4, "context": 32}, 8, 300),
    "small": ({"d_model": 64, "n_layers": 2, "n_heads": 4, "context": 32}, 8, 300),
    "base": ({"d_model": 128, "n_layers": 2, "n_heads": 4, "context": 64}, 16, 300),
}
RATES, SEEDS = [1e-3, 2e-3, 4e-3, 8e-3], [0, 1, 2, 3]


def write_sweep(folder: Path, size: str) -> Path:
    """The sweep's file; it and its base config."""
    model, batch, steps = SIZES[size]
    base = {
        "model": {**model, "head_output": {"kind": "factorized", "rank": model["d_model"] // model["n_heads"]}},
        "data": {"corpus": "stdlib/small", "tokenizer": "byte", "batch_size": batch},
        "optimizer": {"learning_rate": 1e-3},
        "training": {"steps": steps},
        "tracking": {"wandb": {"mode": "offline"}},
    }
    (folder / "base.yaml").write_text(yaml_text.write(base), encoding="utf-8")
    sweep = {
        "name": f"runs of {size} size".replace(" ", "-"),
        "base": "base.yaml",
        "baseline": "W_M",
        "arms": {"W_M": {}},
        "grid": {"optimizer.learning_rate": RATES},
        "seeds": SEEDS,
    }
    file = folder / "sweep.yaml"
    file.write_text(yaml_text.write(sweep), encoding="utf-8")
    return file


def wm(arguments: Sequence[object], cache: Path) -> None:
    """`wm` as a process that compiles into this cache."""
    command = [sys.executable, "-m", "wmresearch.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"WMRESEARCH_CACHE": str(cache)})
    assert done.returncode == 0, done.stderr


def as_a_sweep(file: Path, plan: Plan, folder: Path) -> None:
    del plan
    wm(["sweep", file, "--dir", folder / "runs"], folder / "cache")


def as_processes(file: Path, plan: Plan, folder: Path) -> None:
    """One process a run, as many at a time as there are cores."""

    def one(run: Any) -> None:
        own = [f"optimizer.learning_rate={run.settings['optimizer.learning_rate']}", f"seed={run.seed}"]
        wm(["train", file.parent / "base.yaml", *own, "--dir", folder / run.run_id], folder / "cache")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, plan.runs))


def breakdown(plan: Plan, folder: Path) -> dict[str, float]:
    """Seconds of one run in this process, by what they are spent on; nothing is compiled before."""
    marks: dict[str, float] = {}
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import wmresearch.training.loop, jax; jax.devices()"], check=True)
    marks["start: Python, JAX and what it imports"] = time.perf_counter() - started
    config = plan.runs[0].config
    started = time.perf_counter()
    load_corpus(config.data)
    marks["data: the corpus that was prepared"] = time.perf_counter() - started
    started = time.perf_counter()
    loop.train(config, folder / "one")
    took = time.perf_counter() - started
    rate = RunDirectory(folder / "one").summary()["tokens_per_second"]
    tokens = config.training.steps * config.data.batch_size * config.model.context
    marks["steps"] = tokens / rate
    started = time.perf_counter()
    loop.train(config.model_copy(update={"seed": 1000}), folder / "two")
    again = time.perf_counter() - started
    marks["compiling, of a run's first start in a process"] = took - again
    marks["evaluation, checkpoint, W&B, files"] = max(0.0, again - marks["steps"])
    return marks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", choices=SIZES, default=["tiny", "small", "base"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="also write the Markdown to this file")
    options = parser.parse_args()
    page = [
        "# 16 runs as a sweep, and as processes",
        "",
        f"{measured_by('sweeps.py')}, {options.rounds} rounds.",
        load(),
        "",
        f"4 learning rates × 4 seeds, W&B offline; {os.cpu_count()} processes at a time against one `wm sweep`.",
        "",
        "| size | steps | processes, s | sweep, s | runs an hour, processes | sweep | ratio |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    parts: dict[str, dict[str, float]] = {}
    for size in options.size:
        times: dict[str, list[float]] = {"processes": [], "sweep": []}
        with tempfile.TemporaryDirectory() as name:
            file = write_sweep(Path(name), size)
            plan = make_plan(file)
            for index in range(options.rounds):
                for way, run in (("processes", as_processes), ("sweep", as_a_sweep)):
                    folder = Path(name) / f"{way} {index}"
                    folder.mkdir()
                    prepared = folder / "cache"
                    subprocess.run(
                        [sys.executable, "-m", "wmresearch.cli", "data", "prepare", "stdlib/small"],
                        check=True, capture_output=True, env=os.environ | {"WMRESEARCH_CACHE": str(prepared)},
                    )  # fmt: skip
                    started = time.perf_counter()
                    run(file, plan, folder)
                    times[way].append(time.perf_counter() - started)
                    say(f"{size}, {way}, round {index}: {times[way][-1]:.1f} s")
            parts[size] = breakdown(plan, Path(name))
        processes, sweep = (statistics.median(times[way]) for way in ("processes", "sweep"))
        ratio = statistics.median(a / b for a, b in zip(times["processes"], times["sweep"], strict=True))
        hour = [f"{16 * 3600 / seconds:,.0f}" for seconds in (processes, sweep)]
        cells = [size, str(SIZES[size][2]), f"{processes:.1f}", f"{sweep:.1f}", *hour, f"{ratio:.2f}"]
        page.append("| " + " | ".join(cells) + " |")
    page += ["", "What one run takes, alone in a process, in seconds:", "", "| | " + " | ".join(parts) + " |"]
    page.append("| --- |" + " ---: |" * len(parts))
    for name in next(iter(parts.values())):
        page.append(f"| {name} | " + " | ".join(f"{found[name]:.2f}" for found in parts.values()) + " |")
    put_out(page, options.out)


if __name__ == "__main__":
    main()

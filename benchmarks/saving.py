"""What saving costs a run: how long the loop waits for it, and how much slower the steps beside it are.

    python benchmarks/saving.py [--rounds N] [--saves N] [--size small|large|tiny] [--out benchmarks/results/saving.md]

A run is made by `training.loop.train` in a fresh folder and timed as in overhead.py, from the end of its first
dispatch to its last evaluation, with checkpoints and without, in turns. What the loop waits for is the call that saves:
copies of the arrays, the folders, and the end of the save before, if it has not ended. Files are written beside the
steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from overhead import LARGE, SMALL, described, run_config, trained
from page import load, measured_by, put_out, say

from wmresearch.config import RunConfig
from wmresearch.training.checkpoints import Checkpoints
from wmresearch.training.runtime import prepare_runtime

TINY = {"d_model": 32, "n_layers": 1, "n_heads": 2, "context": 16}, 4
SIZES = {"small": (SMALL, 100), "large": (LARGE, 30), "tiny": (TINY, 16)}
"""A shape, and the steps between saves."""


def saved(config: RunConfig) -> tuple[float, list[float]]:
    """Seconds of a run, and those of each call that saved while it trained."""
    waits: list[float] = []
    original = Checkpoints.save

    def save(self: Checkpoints, *arguments: Any) -> None:
        started = time.perf_counter()
        original(self, *arguments)
        waits.append(time.perf_counter() - started)

    Checkpoints.save = save  # type: ignore[method-assign]
    try:
        return trained(config), waits[:-1]  # the last is after the last evaluation
    finally:
        Checkpoints.save = original  # type: ignore[method-assign]


def row(size: str, saves: int, rounds: int) -> str:
    shape, every = SIZES[size]
    without = run_config(shape, every * (saves + 1))
    training = without.training.model_copy(update={"checkpoint_every": every})
    ratios, waits, between = [], [], []
    for number in range(rounds + 1):  # the first compiles
        say(f"{size}: round {number} of {rounds}")
        alone, (beside, found) = trained(without), saved(without.model_copy(update={"training": training}))
        if number:
            ratios.append(beside / alone)
            waits += found
            between.append(beside / (saves + 1))
    wait, gap = statistics.median(waits), statistics.median(between)
    cells = [f"{every}", f"{gap:.2f}", f"{1e3 * wait:.0f} ({1e3 * max(waits):.0f})", f"{100 * wait / gap:.2f} %"]
    return f"| {described(shape)} | {' | '.join(cells)} | {statistics.median(ratios):.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--saves", type=int, default=4, help="in each run, beside the one at its end")
    parser.add_argument("--size", choices=SIZES, help="only this one")
    parser.add_argument("--out", type=Path, help="also write the Markdown to this file")
    options = parser.parse_args()
    sizes = [options.size] if options.size else ["small", "large"]
    prepare_runtime(run_config(SIZES[sizes[0]][0], 1))
    page = ["# What saving costs", "", f"{measured_by('saving.py')}, {options.rounds} rounds.", load(), ""]
    page += ["The loop waits: ms a save, median (most), and the median's share of the time between saves.", ""]
    page += ["| run | steps between saves | s | the loop waits | share | time with saves / without |"]
    page += ["| --- |" + " ---: |" * 5]
    page += [row(size, options.saves, options.rounds) for size in sizes]
    put_out(page, options.out)


if __name__ == "__main__":
    main()

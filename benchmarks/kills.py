"""Kills training processes at random instants and while they save or cut, and compares what the runs end with.

    python benchmarks/kills.py [--kills N] [--out benchmarks/results/kills.md]

What the tests do 20 times: each run ends with the parameters, optimizer state, logs and summary of one that nobody
killed, bit for bit, or this script ends with an error. Half of the kills are at instants drawn evenly over the time
that a run takes, the others as soon as a checkpoint is begun or heads lose directions.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

RUNS = {"penalties": "cached gradients, skipped spikes, dropout", "ranks": "heads that lose directions twice, dropout"}
PHASES = ("start", "starting", "compiling", "training", "evaluated", "saving", "cutting")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--out", type=Path, help="also write the Markdown to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["WMRESEARCH_CACHE"] = str(folder / "cache")
        page = measured(folder, options.kills)
    from page import put_out

    put_out(page, options.out)


def measured(folder: Path, kills: int) -> list[str]:
    from page import load, measured_by, say

    from tests.faults.runs import Kill, Nursery, killed_again_and_again, run_of
    from tests.training.examples import TEXT

    each = kills // len(RUNS)

    def tell(number: int, kill: Kill) -> None:
        say(f"{number} of {each}: {kill.phase}, step {kill.step}, after {kill.seconds:.1f} s")

    (folder / "words.txt").write_text(TEXT, encoding="utf-8")
    nursery, started, beginning = Nursery(), time.monotonic(), load()
    counts, ended = {}, 0
    for kind in RUNS:
        say(f"{kind}: a run that nobody kills")
        data = run_of(folder / "words.txt", kind)
        found, runs = killed_again_and_again(nursery, data, folder / kind, each, kind, tell)
        counts[kind], ended = Counter(kill.phase for kill in found), ended + runs
    nursery.close()
    said = (
        f"{sum(count.total() for count in counts.values())} processes were killed by SIGKILL in "
        f"{(time.monotonic() - started) / 60:.0f} minutes. Those that came after finished their {ended} runs, each "
        "bitwise equal to a run that nobody killed: parameters, optimizer state, `metrics.jsonl`, "
        "`diagnostics.jsonl`, `ranks.jsonl`, singular values, and `summary.json` but for its times."
    )
    phases = [phase for phase in PHASES if any(counts[kind][phase] for kind in RUNS)]
    page = ["# Runs whose processes are killed", "", f"{measured_by('kills.py')}.", beginning, "", said, ""]
    page += ["What a process was at when it was killed:", ""]
    page += [f"| run | {' | '.join(phases)} | in all |", "| --- |" + " ---: |" * (len(phases) + 1)]
    for kind, what in RUNS.items():
        cells = [str(counts[kind][phase]) for phase in phases]
        page.append(f"| {what} | {' | '.join(cells)} | {counts[kind].total()} |")
    return page


if __name__ == "__main__":
    main()

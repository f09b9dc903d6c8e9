"""Loss against total rank, for every method of a sweep: the figure of this question.

    python experiments/q06_rank_allocation/figure.py runs/q06_rank_allocation runs/q06_full_rank --out FILE.png

Mean over seeds with its 95 % t interval, beside all directions of `full_rank.yaml` and ranks trained from the start.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt

from wmresearch.reports.figures import PAPER_WIDTH, STYLE
from wmresearch.reports.rows import Row
from wmresearch.reports.table import build_table

TOTAL = "model.head_output.total_rank"


def bars(rows: list[Row]) -> dict[str, list[float]]:
    """Mean and half-width of each row's validation loss."""
    found = [row.validation_loss for row in rows]
    return {
        "y": [each.mean for each in found],
        "yerr": [0 if each.low is None else each.mean - each.low for each in found],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("full", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    table, full = build_table(options.sweep), build_table(options.full)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(PAPER_WIDTH, 0.6 * PAPER_WIDTH))
        arms = list(dict.fromkeys(row.arm for row in table.rows))
        for index, arm in enumerate(arms):
            rows = [row for row in table.rows if row.arm == arm]
            totals = [row.settings[TOTAL] * 1.03 ** (index - len(arms) / 2) for row in rows]  # beside each other
            style = "--" if arm in ("uniform", "random") else "-"
            axes.errorbar(totals, **bars(rows), label=arm, linestyle=style, marker="o", markersize=3, capsize=2)
        scratch = [row for row in full.rows if row.arm.startswith("rank")]
        totals = [row.total_rank for row in scratch]
        axes.errorbar(totals, **bars(scratch), label="uniform from the start", linestyle=":", marker="s", markersize=3)
        (whole,) = (row for row in full.rows if row.arm == "all directions")
        axes.axhline(whole.validation_loss.mean, color="0.5", linewidth=0.8, label=f"all {whole.total_rank} directions")
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({row.settings[TOTAL] for row in table.rows}))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("total rank over all layers and heads")
        axes.set_ylabel("validation loss, nats/token")
        axes.legend(fontsize="small", ncols=2)
        figure.savefig(options.out, dpi=200, bbox_inches="tight")


if __name__ == "__main__":
    main()

"""Keeps a table for good: in every form, with what it was made from, so that it can be made again without the runs."""

from __future__ import annotations

import shutil
from pathlib import Path

from wmresearch.reports.records import MANIFEST, PLAN, SUMMARY, read_plan, read_record
from wmresearch.reports.rows import Table
from wmresearch.reports.table import FORMATS, render
from wmresearch.training.files import json_line, write_atomically, write_json
from wmresearch.training.run_directory import RunDirectory

RUNS = "runs"


def keep_table(table: Table, directory: Path, out: Path) -> None:
    """Writes table.md, .csv, .tex and .json, manifest.json, and runs/: the plan, and what tables read of each run.

    `wm table OUT/runs` then makes the same table. What was kept in `out` before is replaced.
    """
    runs = out / RUNS
    out.mkdir(parents=True, exist_ok=True)
    for form in FORMATS:
        write_atomically(out / f"table.{form}", render(table, form))
    write_json(out / "manifest.json", table.manifest)
    if runs.exists():
        if runs.samefile(directory):  # the table of what was kept
            return
        shutil.rmtree(runs)
    runs.mkdir()
    shutil.copyfile(directory / PLAN, runs / PLAN)
    for run in read_plan(directory).runs:
        record, kept = read_record(directory, run), runs / run.run_id
        kept.mkdir()
        for name, found in ((SUMMARY, record.summary), (MANIFEST, record.manifest)):
            if found is not None:
                write_json(kept / name, found.model_dump(mode="json"))
        losses = [line for line in RunDirectory(directory / run.run_id).metrics() if "validation_loss" in line]
        write_atomically(kept / "metrics.jsonl", "".join(map(json_line, losses)))

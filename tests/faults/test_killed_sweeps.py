"""A sweep whose command and workers are killed together, at random instants, and started again."""

import json
import os
import random
import shutil
import signal
import time

from tests.sweeps.mini import mini_sweep, start_wm
from wmresearch.reports.table import build_table, render
from wmresearch.sweeps.store import missing, read_plan, statuses

KILLS = int(os.environ.get("WMRESEARCH_KILLS", "3"))
"""10 take a minute and a half."""


def table(directory):
    """What the table says, without how fast the runs went and when."""
    found = json.loads(render(build_table(directory), "json"))
    return [{key: value for key, value in row.items() if key != "tokens_per_second"} for row in found["rows"]]


def finished(directory):
    """Run → when its summary was written, of those that are finished."""
    files = {run.run_id: directory / run.run_id / "summary.json" for run in statuses(directory)}
    done = {run.run_id for run in statuses(directory) if run.state == "finished"}
    return {name: file.stat().st_mtime_ns for name, file in files.items() if name in done}


def test_a_killed_sweep_does_each_run_once_and_has_the_same_table(tmp_path):
    whole, draw = mini_sweep(), random.Random(time.time_ns())
    for name in ("sweep.yaml", "base.yaml", "text.txt"):
        shutil.copy(whole / name, tmp_path / name)
    directory, done, killed = tmp_path / "runs", {}, 0
    command = ("sweep", tmp_path / "sweep.yaml", "--dir", directory)
    while killed < KILLS:
        process = start_wm(*command, cwd=tmp_path, start_new_session=True)
        time.sleep(draw.uniform(1.0, 8.0))
        if process.poll() is not None:  # it was done before
            shutil.rmtree(directory)
            done = {}
            continue
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        killed += 1
        if (directory / "sweep.json").exists():
            assert done.items() <= finished(directory).items(), "what is finished is not run again"
            done = finished(directory)
    process = start_wm(*command, cwd=tmp_path)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    assert done.items() <= finished(directory).items() and not missing(directory)
    assert table(directory) == table(whole / "runs")
    for run in read_plan(directory)["runs"]:
        one, other = (folder / run["run_id"] / "metrics.jsonl" for folder in (directory, whole / "runs"))
        assert one.read_bytes() == other.read_bytes()

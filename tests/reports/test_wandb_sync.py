"""`wm sync`: by wandb's own client, to a server on this machine, or to none."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.reports.wandb_server import environment, serving
from tests.sweeps.mini import start_wm, twenty_runs, wm
from tests.sweeps.wandb_records import last_summary, record_file, records, rows
from tests.training.examples import wait_until
from wmresearch.reports.wandb_sync import read_records, rebuild
from wmresearch.sweeps.store import read_plan
from wmresearch.training.run_directory import RunDirectory

NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def sweep(tmp_path):
    """One run of each arm of the twenty, as a sweep of its own, for a test to change."""
    whole = twenty_runs() / "runs"
    plan = read_plan(whole)
    plan["runs"] = [run for run in plan["runs"] if run["seed"] == 0]
    for run in plan["runs"]:
        shutil.copytree(whole / run["run_id"], tmp_path / "runs" / run["run_id"], symlinks=True)
    (tmp_path / "runs" / "sweep.json").write_text(json.dumps(plan))
    (tmp_path / "home").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def server():
    with serving() as made:
        yield made


def environment_of(sweep, url):
    home = {"HOME": str(sweep.parent / "home"), "WANDB_BASE_URL": url, "WANDB_API_KEY": "a" * 40}
    return environment(**home, WANDB_HTTP_TIMEOUT="2")


def start(*command, sweep, url, **more):
    return start_wm(*command, env=environment_of(sweep, url), **more)


def ended(process):
    out, err = process.communicate(timeout=180)
    return process.returncode, out, err


def states(sweep):
    return [record.state for record in read_records(sweep)]


def content(sweep):
    return {path: path.read_bytes() for path in sweep.rglob("*") if path.is_file()}


def told(run):
    """What W&B was told of a run, in an order of its own, without the files' names and when it was."""
    lines = [{key: value for key, value in row.items() if key != "spectra.path"} for row in rows(run)]
    (begun,) = records(run, "run")
    kept = {key: value for key, value in begun.items() if key not in ("start_time", "runner_id", "host", "notes")}
    summary = {key: value for key, value in last_summary(run).items() if not key.startswith("spectra")}
    exits = [record["exit_code"] for record in records(run, "exit")]
    return sorted(json.dumps(line, sort_keys=True) for line in lines), kept, summary, exits


def test_records_that_were_lost_are_made_again_the_same(sweep):
    for record in read_records(sweep):
        path = record.run.path
        before = told(path)
        shutil.rmtree(path / "wandb")
        assert states(path) == ["lost"]
        assert rebuild(record.run) == record_file(path).parent
        after = told(path)
        for name, one, other in zip(("rows", "run", "summary", "exit"), before, after, strict=True):
            assert one == other, name
    assert states(sweep) == ["recorded"] * 4


def test_a_record_older_than_the_runs_summary_counts_as_lost(sweep):
    record = read_records(sweep)[0]
    summary = record.run.summary()
    (record.run.path / "summary.json").write_text(json.dumps(summary | {"arm": "renamed"}))
    assert read_records(sweep)[0].state == "lost"
    rebuild(record.run)
    assert records(record.run.path, "run")[0]["display_name"] == "renamed · seed 0"
    assert read_records(sweep)[0].state == "recorded"


def test_each_run_is_uploaded_once_through_whatever_happens(sweep, server):
    """Nobody answers; then an upload is interrupted; then one goes through; then there is nothing left to do."""
    paths = [record.run.path for record in read_records(sweep)]
    shutil.rmtree(paths[1] / "wandb")
    rebuild(RunDirectory(paths[1]))
    before = content(sweep)
    code, out, _ = ended(start("sync", sweep, sweep=sweep, url=NOBODY))
    assert code == 1
    assert out.startswith("0 runs uploaded\n4 left: ")
    assert "cannot be reached" in out and f"go on with: wm sync {sweep}" in out
    after = content(sweep)
    assert {path: after[path] for path in before} == before

    server.silent.add(paths[2].name)
    process = start("sync", sweep, sweep=sweep, url=server.url, start_new_session=True)
    wait_until(lambda: states(sweep).count("uploaded") == 3)
    os.killpg(process.pid, signal.SIGINT)
    assert ended(process)[0] != 0
    assert states(sweep) == ["uploaded", "uploaded", "recorded", "uploaded"]

    server.silent.clear()
    code, out, err = ended(start("sync", sweep, sweep=sweep, url=server.url))
    assert (code, out) == (0, "1 run uploaded; 3 were uploaded before\n"), err
    requests = len(server.runs)
    code, out, err = ended(start("sync", sweep, sweep=sweep, url=server.url))
    assert (code, out) == (0, "0 runs uploaded; 4 were uploaded before\n"), err
    assert len(server.runs) == requests

    for path in paths:
        sent = server.history[path.name]
        assert len(sent) == len(rows(path))
        losses = [row["validation_loss"] for row in sent if "validation_loss" in row]
        written = [line["validation_loss"] for line in RunDirectory(path).metrics() if "validation_loss" in line]
        assert losses == written
    assert {given["groupName"] for given in server.runs if given.get("displayName")} == {"twenty"}
    pictures = sum("spectra.path" in row for path in paths for row in rows(path))
    assert sum(name.endswith(".png") for name in server.files) == pictures > 0
    assert [server.exit_codes[path.name] for path in paths] == [0, 0, 0, 1]


def test_what_is_uploaded_already_is_uploaded_again_only_where_that_is_asked_for(sweep, server):
    path = read_records(sweep)[0].run.path
    file = record_file(path)
    file.with_name(file.name + ".synced").touch()
    code, out, err = ended(start("sync", path, "--again", sweep=sweep, url=server.url))
    assert (code, out) == (0, "1 run uploaded; 1 recorded again from their directories\n"), err
    assert set(server.history) == {path.name}
    assert (path / "wandb" / "earlier").exists()


def test_a_server_that_says_nothing_is_given_up(sweep, server):
    names = {record.name for record in read_records(sweep)}
    server.silent |= names
    script = f"""
from pathlib import Path
from wmresearch.reports.wandb_sync import sync
done = sync(Path({str(sweep)!r}), silent=0.5)
assert done.trouble == "W&B took no run for 0.5 s", done
assert (done.uploaded, set(done.left)) == ([], {names!r}), done
"""
    subprocess.run([sys.executable, "-c", script], check=True, env=environment_of(sweep, server.url))


def test_runs_that_train_or_have_not_begun_are_left(capfd, sweep):
    paths = [record.run.path for record in read_records(sweep)]
    for path in paths[:3]:
        shutil.rmtree(path / "wandb")
    (paths[3] / "summary.json").unlink()
    assert wm(capfd, "sync", sweep, "--dry-run")[:2] == (0, "3 lost\n1 pending\n")
    assert wm(capfd, "sync", sweep.parent / "home")[0] == 2
    with RunDirectory(paths[0]).locked(), RunDirectory(paths[1]).locked(), RunDirectory(paths[2]).locked():
        code, out, err = ended(start("sync", sweep, sweep=sweep, url=NOBODY))
    assert (code, out) == (
        0,
        f"0 runs uploaded; 3 are being trained: {', '.join(path.name for path in paths[:3])}\n",
    ), err

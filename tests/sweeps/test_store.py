"""A sweep's directory: what is laid out, kept, refused."""

import json
import time

import pytest

from tests.sweeps.mini import ARMS, write_sweep
from wmresearch.config import ConfigError, yaml_text
from wmresearch.reports.table import build_table
from wmresearch.sweeps.plan import make_plan
from wmresearch.sweeps.store import STALE_SECONDS, missing, read_plan, statuses, write_plan
from wmresearch.training.files import write_json
from wmresearch.training.run_directory import RunDirectory


def everything(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_planned_run_is_pending_and_can_be_trained_from_its_folder_alone(tmp_path):
    plan = make_plan(write_sweep(tmp_path))
    write_plan(tmp_path / "runs", plan)
    for run in plan.runs:
        folder = RunDirectory(tmp_path / "runs" / run.run_id)
        summary = folder.summary()
        assert (summary["state"], summary["arm"], summary["seed"]) == ("pending", run.arm, run.seed)
        assert yaml_text.read(folder.path / "config.yaml") == run.config.model_dump(mode="json")
    assert missing(tmp_path / "runs") == read_plan(tmp_path / "runs")["runs"]
    assert [status.state for status in statuses(tmp_path / "runs")] == ["pending"] * 4


def test_planning_again_changes_nothing(copied):
    file, directory = copied
    write_plan(directory, make_plan(file))  # a text elsewhere is another program's
    before = everything(directory)
    write_plan(directory, make_plan(file))
    assert everything(directory) == before
    assert missing(directory) == []


def test_a_renamed_arm_keeps_its_runs(copied):
    file, directory = copied
    old = {row.arm: row.validation_loss for row in build_table(directory).rows}
    data = yaml_text.read(file) | {"arms": {name.replace("W_M", "Wₘ, new,"): keys for name, keys in ARMS.items()}}
    file.write_text(yaml_text.write(data), encoding="utf-8")
    write_plan(directory, make_plan(file))
    assert missing(directory) == []
    rows = {row.arm: row.validation_loss for row in build_table(directory).rows}
    assert rows == {"W_o": old["W_o"], "Wₘ, new, rank 3": old["W_M rank 3"], "decay 1": old["decay 1"]}
    names = {status.arm for status in statuses(directory)}
    assert (
        names == {RunDirectory(path.parent).summary()["arm"] for path in directory.glob("*/summary.json")} == set(rows)
    )


def test_a_run_that_another_process_is_at_is_left_to_it(tmp_path):
    file = write_sweep(tmp_path)
    plan = make_plan(file)
    write_plan(tmp_path / "runs", plan)
    held = RunDirectory(tmp_path / "runs" / plan.runs[0].run_id)
    before = everything(held.path)
    data = yaml_text.read(file)
    data["arms"] = {f"new {name}": keys for name, keys in data["arms"].items()}
    file.write_text(yaml_text.write(data | {"baseline": "new W_o"}), encoding="utf-8")
    with held.locked():
        write_plan(tmp_path / "runs", make_plan(file))
    assert everything(held.path) == before
    assert RunDirectory(tmp_path / "runs" / plan.runs[1].run_id).summary()["arm"] == "new W_o"


@pytest.mark.parametrize(
    ("name", "found"), [("other", "sweep 'other'"), ("run", "a single run"), ("file", "a folder that can be made")]
)
def test_a_directory_that_is_something_else_is_refused_and_left_alone(name, found, tmp_path):
    plan = make_plan(write_sweep(tmp_path / "sweep"))
    write_plan(tmp_path / "other", make_plan(write_sweep(tmp_path / "two", "other")))
    (tmp_path / "run").mkdir()
    write_json(tmp_path / "run" / "summary.json", {"run_id": "0123456789ab"})
    (tmp_path / "file").touch()
    before = everything(tmp_path)
    with pytest.raises(ConfigError, match=found):
        write_plan(tmp_path / name, plan)
    assert everything(tmp_path) == before


def test_a_directory_without_a_sweep_is_said_to_be_one(tmp_path):
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ConfigError, match=r"the directory of a sweep \(with a sweep.json\)"):
            read_plan(path)


def test_a_run_whose_process_died_silently_is_told_from_one_that_is_slow(tmp_path):
    plan = make_plan(write_sweep(tmp_path))
    write_plan(tmp_path / "runs", plan)
    for run, age in zip(plan.runs, (0.0, STALE_SECONDS + 1), strict=False):
        folder = RunDirectory(tmp_path / "runs" / run.run_id)
        write_json(folder.path / "summary.json", folder.summary() | {"state": "running"})
        folder.write_status("running", step=3, steps=20, loss=5.0)
        status = json.loads((folder.path / "status.json").read_text())
        write_json(folder.path / "status.json", status | {"heartbeat": time.time() - age})
    found = statuses(tmp_path / "runs")
    assert [status.state for status in found] == ["running", "running (silent)", "pending", "pending"]
    assert [(status.step, status.steps, status.loss) for status in found[:2]] == [(3, 20, 5.0)] * 2
    assert len(missing(tmp_path / "runs")) == 4

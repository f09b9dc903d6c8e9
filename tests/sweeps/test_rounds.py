"""A sweep that tunes and matches, really run by `wm sweep`: what it ran, what its table says, and starting it again."""

import json
import shutil

import numpy as np
import pytest

from tests.sweeps.mini import wm
from wmresearch.config import yaml_text
from wmresearch.reports.table import build_table, render
from wmresearch.sweeps.plan import extended, make_plan, results_in
from wmresearch.sweeps.rounds import train_all
from wmresearch.sweeps.store import missing, read_plan, statuses
from wmresearch.training.files import write_json
from wmresearch.training.run_directory import RunDirectory

RATE = "optimizer.learning_rate"
CHOSEN = {"W_o": 2e-3, "W_M rank 3": 8e-3}


def summaries(directory, **match):
    """Those of the runs that match."""
    runs = [run for run in read_plan(directory)["runs"] if run.items() >= match.items()]
    return [RunDirectory(directory / run["run_id"]).summary() for run in runs]


def test_each_arm_is_tuned_past_the_edge_and_reported_with_fresh_seeds(tuned):
    assert (tuned / "code").read_text() == "0", (tuned / "out").read_text()
    tried = {"W_o": [5e-4, 1e-3, 2e-3], "W_M rank 3": [2e-3, 4e-3, 8e-3]}
    reported = {"W_o": [2e-3, 2e-3], "W_M rank 3": [8e-3, 8e-3, 2e-3, 2e-3]}
    for arm in tried:
        found = summaries(tuned / "runs", arm=arm, role="tune")
        assert [(run["learning_rate"], run["seed"], run["role"]) for run in found] == [
            (rate, 7, "tune") for rate in tried[arm]
        ]
        losses = [run["validation_loss"] for run in found]
        assert losses == sorted(losses, reverse=True), "six steps are too few for any of these rates"
        found = summaries(tuned / "runs", arm=arm, role="report")
        assert [(run["learning_rate"], run["seed"]) for run in found] == list(
            zip(reported[arm], [0, 1] * 2, strict=False)
        )
    assert {status.state for status in statuses(tuned / "runs")} == {"finished"}
    assert len(list((tuned / "runs").glob("*/summary.json"))) == len(read_plan(tuned / "runs")["runs"]) == 12


def test_the_table_has_the_test_loss_first_the_chosen_values_and_the_loss_at_the_baselines(tuned):
    table = build_table(tuned / "runs")
    base, rank = table.rows
    assert table.loss == "test_loss"
    for row in table.rows:
        at = {rate: [run["test_loss"] for run in summaries(tuned / "runs", arm=row.arm, role="report")
                     if run["learning_rate"] == rate] for rate in (CHOSEN[row.arm], 2e-3)}  # fmt: skip
        assert row.tuned.chosen == {RATE: CHOSEN[row.arm]} and row.settings == row.tuned.chosen
        assert (row.n, row.planned, row.tuned.tried) == (2, 2, 3)
        assert row.test_loss.mean == pytest.approx(np.mean(at[CHOSEN[row.arm]]))
        assert row.tuned.at_baseline.mean == pytest.approx(np.mean(at[2e-3]))
        assert row.flags == ("best learning_rate at the edge",)
    assert rank.delta.n == 2 and rank.delta.mean == pytest.approx(rank.test_loss.mean - base.test_loss.mean)
    assert base.adjusted is None and rank.adjusted["key"] == "model.d_mlp"
    assert rank.parameters == pytest.approx(base.parameters, rel=0.005)
    assert base.reach.steps == pytest.approx(6) and base.reach.flops == pytest.approx(base.training_flops)
    assert 0 < rank.reach.steps < 6 and rank.reach.flops < rank.training_flops
    text = render(table)
    columns = [word.strip() for word in text.splitlines()[0].strip("|").split("|")]
    assert columns[:7] == [
        "arm", "learning_rate", "test loss", "Δ to W_o", "p (Holm)", "at that of W_o", "validation loss"
    ]  # fmt: skip
    assert f"W_M rank 3 by model.d_mlp = {rank.adjusted['after']} in place of 64" in text
    assert "The runs shown have other seeds" in text and "a better one may lie beyond" in text
    for form in ("csv", "tex", "json"):
        assert render(table, form)


def test_starting_it_again_trains_nothing_and_changes_nothing(tuned, tmp_path, capfd):
    shutil.copytree(tuned, tmp_path / "again")
    directory = tmp_path / "again" / "runs"
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != ".lock"}
    code, out, _ = wm(capfd, "sweep", tuned / "sweep.yaml", "--dir", directory)
    assert code == 0 and "12 of 12 runs finished" in out
    assert {p: p.read_bytes() for p in directory.rglob("*") if p.is_file() and p.name != ".lock"} == before


@pytest.mark.parametrize("at_once", [1, 3, 5])
def test_stopped_anywhere_and_started_again_it_is_the_sweep_that_was_not(tuned, tmp_path, at_once):
    """Each start gets the results of a few of the missing runs, out of those that were really trained, and stops."""
    directory, done = tmp_path / "runs", []

    def launch():
        for run in missing(directory)[:at_once]:
            done.append(run["run_id"])
            shutil.copytree(tuned / "runs" / run["run_id"], directory / run["run_id"], dirs_exist_ok=True)
        return not missing(directory)

    starts = 0
    while not train_all(make_plan(tuned / "sweep.yaml"), directory, launch):
        starts += 1
        assert starts < 20
    assert starts >= 1 and len(done) == len(set(done)) == 12
    assert (directory / "sweep.json").read_bytes() == (tuned / "runs" / "sweep.json").read_bytes()
    assert render(build_table(directory), "json") == render(build_table(tuned / "runs"), "json")


def test_a_failed_or_diverged_tuning_run_is_said_and_the_others_go_on(tuned, tmp_path):
    shutil.copytree(tuned, tmp_path / "copy")
    directory = tmp_path / "copy" / "runs"
    plan = make_plan(tmp_path / "copy" / "sweep.yaml")
    first = next(run for run in plan.runs if run.arm == "W_M rank 3")
    folder = RunDirectory(directory / first.run_id)
    kept = folder.summary()
    write_json(folder.path / "summary.json", kept | {"state": "failed", "reason": "out of memory"})
    assert train_all(plan, directory, lambda: True)
    base, rank = build_table(directory).rows
    assert (base.n, base.flags) == (2, ("best learning_rate at the edge",))
    assert (rank.n, rank.planned, rank.flags, rank.tuned.chosen) == (0, 0, ("tuning failed",), None)
    write_json(folder.path / "summary.json", kept | {"state": "diverged", "validation_loss": None})
    assert train_all(plan, directory, lambda: True)
    assert build_table(directory).rows[1].tuned.chosen == {RATE: 8e-3}
    tried = json.loads((directory / "sweep.json").read_text())["tuned"][1]["tried"]
    assert [one["loss"] is None for one in tried] == [True, False, False]


def test_a_dry_run_says_what_tuning_and_what_comes_after_take(tuned, capfd, tmp_path):
    code, out, _ = wm(capfd, "sweep", tuned / "sweep.yaml", "--dry-run", "--measure", "--dir", tmp_path / "none")
    assert code == 0 and not (tmp_path / "none").exists()
    assert "time a run" in out and out.count(" s\n") >= 2 and "on disk, " in out and "with 1 job" in out
    assert "4 runs in" in out and "then 4 to 6 report runs" in out and "model.d_mlp 64 → 7" in out
    code, out, _ = wm(capfd, "sweep", tuned / "sweep.yaml", "--dry-run", "--dir", tuned / "runs")
    assert code == 0 and out.count(" finished\n") == 12 and "report runs:" not in out


def test_status_and_labels_show_both_roles(tuned, capfd):
    _, out, _ = wm(capfd, "status", tuned / "runs")
    roles = [word for line in out.splitlines()[1:] for word in line.split() if word in ("tune", "report")]
    assert roles == [run["role"] for run in read_plan(tuned / "runs")["runs"]] and set(roles) == {"tune", "report"}
    plan = extended(make_plan(tuned / "sweep.yaml"), results_in(tuned / "runs"))
    for run in plan.runs:
        labels = RunDirectory(tuned / "runs" / run.run_id).summary()
        assert (labels["role"], labels["arm"], labels["settings"]) == (run.role, run.arm, run.settings)
        assert yaml_text.read(tuned / "runs" / run.run_id / "config.yaml") == run.config.model_dump(mode="json")

"""The offline records of a sweep of twenty runs, against the runs' directories."""

import pytest

from tests.sweeps.mini import TWENTY, twenty_runs
from tests.sweeps.wandb_records import last_summary, record_file, records, rows
from wmresearch.config import yaml_text
from wmresearch.sweeps.store import read_plan
from wmresearch.training.run_directory import RunDirectory


@pytest.fixture(scope="module")
def runs():
    """Planned run → its directory."""
    directory = twenty_runs() / "runs"
    return [(planned, RunDirectory(directory / planned["run_id"])) for planned in read_plan(directory)["runs"]]


def written(line):
    """A line of a log as W&B writes it; null is what is no number."""
    return {key: "NaN" if value is None else value for key, value in line.items()}


def test_there_are_twenty_in_one_group_each_once_under_its_arm(runs):
    begun = [records(run.path, "run") for _, run in runs]
    assert [len(found) for found in begun] == [1] * 20
    assert [found["run_id"] for (found,) in begun] == [planned["run_id"] for planned, _ in runs]
    assert {(found["run_group"], found["job_type"], found["project"]) for (found,) in begun} == {
        ("twenty", "report", "wmresearch")
    }
    assert [found["display_name"] for (found,) in begun] == [
        f"{arm} · seed {seed}" for arm in TWENTY for seed in range(5)
    ]
    for (planned, run), (found,) in zip(runs, begun, strict=True):
        config = {key: value for key, value in found["config"]["update"].items() if key != "_wandb"}
        assert config == yaml_text.read(run.path / "config.yaml") | {"arm": planned["arm"], "settings": {}}
        assert {"twenty", planned["arm"]} <= set(found["tags"])


def test_every_metric_is_on_the_axis_step_with_the_values_of_the_directory(runs):
    for _, run in runs:
        axes = [metric for metric in records(run.path, "metric") if metric.get("glob_name") == "*"]
        assert [metric["step_metric"] for metric in axes] == ["step"]
        told = rows(run.path)
        assert all("step" in row for row in told)
        metrics = [written(line) for line in run.metrics()]
        names = {key for line in metrics for key in line}
        assert [row for row in told if row.keys() <= names] == metrics
        assert [row for row in told if "tokens_per_second" in row] == run.timing()
        measured = [line["step"] for line in run.diagnostics()]
        assert [row["step"] for row in told if "heads/effective_rank/mean" in row] == measured
        assert [row["step"] for row in told if "spectra.path" in row] == measured
        assert [row["step"] for row in told if "rank/total" in row] == [line["step"] for line in run.ranks()]


def test_summaries_and_exit_codes_are_the_directories(runs):
    for planned, run in runs:
        summary, told = run.summary(), last_summary(run.path)
        assert {key: told.get(key) for key in summary} == summary
        diverges = planned["arm"] == "too fast"
        assert summary["state"] == ("diverged" if diverges else "finished")
        assert [record["exit_code"] for record in records(run.path, "exit")] == [int(diverges)]


def test_a_run_takes_little_room(runs):
    for _, run in runs:
        folder = record_file(run.path).parent
        assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 150_000

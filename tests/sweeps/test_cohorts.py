"""Which runs are trained together, how many at a time, and how a worker says what became of them."""

import json
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from tests.sweeps.mini import write_sweep
from tests.training.examples import config, tiny
from wmresearch.sweeps import cohorts, slurm_job
from wmresearch.sweeps.cohorts import side_by_side, units
from wmresearch.sweeps.plan import make_plan
from wmresearch.sweeps.slurm import SlurmLauncher, SlurmOptions
from wmresearch.sweeps.store import read_plan, statuses, write_plan
from wmresearch.sweeps.worker import train_one, train_together
from wmresearch.training.interruption import StopRequest


@given(st.lists(st.integers(0, 4), max_size=30), st.integers(1, 5))
def test_units_hold_each_run_once_and_leave_no_worker_idle(cohort_of, workers):
    runs = [{"run_id": str(index), "cohort": cohort} for index, cohort in enumerate(cohort_of)]
    made = units(runs, workers)
    assert Counter(run["run_id"] for unit in made for run in unit.runs) == Counter(run["run_id"] for run in runs)
    assert all(len({run["cohort"] for run in unit.runs}) == 1 for unit in made)
    assert len(made) >= min(workers, len(runs))
    alone = [run | {"alone": True} for run in runs[:3]]
    assert [unit.runs for unit in units(alone, 1)] == [(run,) for run in alone]


def test_as_many_runs_are_side_by_side_as_fit(monkeypatch):
    text = Path("text.txt")
    small = config(text)
    monkeypatch.setattr(cohorts, "_cores", lambda: 6)
    assert [side_by_side(small, runs, workers) for runs, workers in ((16, 1), (16, 2), (2, 1), (16, 9))] == [6, 3, 2, 1]
    assert side_by_side(config(text, parallel={"mesh": {"run": 3}}), 16, 1) == 3
    assert side_by_side(config(text, parallel={"mesh": {"head": 2}}), 16, 1) == 1
    assert side_by_side(config(text, execution={"cohort": "vmap"}), 16, 1) == 16
    monkeypatch.setattr(cohorts, "_free_memory", lambda: 2.6 * cohorts.bytes_of_run(small))
    assert side_by_side(small, 16, 1) == 2


def test_a_cohort_trains_through_the_worker_and_stops_as_told(tmp_path):
    base = tiny(tmp_path / "text.txt") | {"parallel": {"mesh": {"run": 2}}}
    grid = {"optimizer.learning_rate": [1e-3, 1e-2]}
    file, directory = write_sweep(tmp_path, base=base, arms={"W_o": {}}, grid=grid), tmp_path / "runs"
    write_plan(directory, make_plan(file))
    runs, answers = read_plan(directory)["runs"], []
    (unit,) = units(runs, 1)
    stop = StopRequest("SIGTERM")
    train_together(directory, "mini", unit.runs, answers.append, stop)
    assert [answer["state"] for answer in answers] == ["preempted"] * 4
    assert {status.state for status in statuses(directory)} == {"pending"}, "none was begun"
    answers.clear()
    train_together(directory, "mini", unit.runs, answers.append, StopRequest())
    assert sorted(answer["run_id"] for answer in answers) == sorted(run["run_id"] for run in runs)
    assert {status.state for status in statuses(directory)} == {"finished"}
    states = {
        json.loads((directory / run["run_id"] / "manifest.json").read_text())["cohort"]["side_by_side"] for run in runs
    }
    assert states == {2}


def test_what_ran_out_of_memory_is_called_that(tmp_path):
    """A batch whose logits no machine holds."""
    base = tiny(tmp_path / "text.txt")
    base["data"]["batch_size"] = 2**27
    file, directory = write_sweep(tmp_path, base=base, arms={"W_o": {}}, seeds=[0]), tmp_path / "runs"
    write_plan(directory, make_plan(file))
    (run,) = read_plan(directory)["runs"]
    answer = train_one(directory, "mini", run, StopRequest())
    assert (answer["state"], answer["failure"]) == ("failed", "out_of_memory")


def test_a_slurm_job_tries_what_had_too_little_memory_together_once_more_by_itself(tmp_path, monkeypatch):
    """As if two runs side by side were too many for the memory."""
    file, directory = write_sweep(tmp_path, arms={"W_o": {}}), tmp_path / "runs"
    write_plan(directory, make_plan(file))
    runs, tried = tuple(read_plan(directory)["runs"]), []

    def short_of_memory(folder, sweep, group, answer, stop, **more):
        tried.append([run["seed"] for run in group])
        if len(group) == 1:
            train_together(folder, sweep, group, answer, stop, **more)
        else:
            for run in group:
                answer({"run_id": run["run_id"], "state": "failed", "failure": "out_of_memory"})

    monkeypatch.setattr(slurm_job, "train_together", short_of_memory)
    assert set(slurm_job.SlurmJob(directory, "mini", runs, tries=3)().values()) == {"finished"}
    assert tried == [[0, 1], [0], [1]]


def test_a_run_that_was_short_of_memory_stays_alone_in_slurm(tmp_path, monkeypatch):
    """Its next job is lost for another reason. `squeue` is made up: no cluster does both when it is asked to."""
    directory = tmp_path / "runs"
    write_plan(directory, make_plan(write_sweep(tmp_path, arms={"W_o": {}})))
    first, second = (run["run_id"] for run in read_plan(directory)["runs"])
    record = {"saved": 0, "tries": 1}
    (directory / "slurm").mkdir()
    jobs = {first: record | {"job": "7_0", "alone": True}, second: record | {"job": "7_1", "alone": False}}
    (directory / "slurm/jobs.json").write_text(json.dumps(jobs))
    (tmp_path / "squeue").write_text("#!/bin/sh\necho '7_0|NODE_FAIL'; echo '7_1|NODE_FAIL'\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    submitted = []

    class Executor:
        batch = staticmethod(nullcontext)

        def submit(self, job):
            submitted.append([run["run_id"] for run in job.runs])
            return SimpleNamespace(job_id=f"8_{len(submitted)}")

    launcher = SlurmLauncher(directory, SlurmOptions(parallel=1))
    launcher._first = False
    launcher._step(Executor(), StopRequest())
    assert submitted == [[first], [second]], "of one cohort, which one job would train"
    kept = json.loads((directory / "slurm/jobs.json").read_text())
    assert {run: (kept[run]["job"], kept[run]["alone"], kept[run]["tries"]) for run in (first, second)} == {
        first: ("8_1", True, 2), second: ("8_2", False, 2),
    }  # fmt: skip

"""Sweeps on a real SLURM cluster of two nodes: jobs that are cancelled, lose their node, are preempted or fail."""

import json
import os
import shlex
import signal
import threading
from pathlib import Path

import pytest

from tests.slurm.cluster import FIRST, asked, cluster, what_is_missing
from tests.sweeps.mini import start_wm, wm, write_sweep
from tests.training.examples import last_step, metrics_bytes, tiny, wait_until
from wmresearch.sweeps import slurm
from wmresearch.sweeps.launchers import LocalLauncher
from wmresearch.sweeps.plan import make_plan
from wmresearch.sweeps.slurm import SlurmLauncher, SlurmOptions, job_states, parameters_of
from wmresearch.sweeps.store import statuses, write_plan
from wmresearch.training.run_directory import RunDirectory

ARMS = {
    "W_o": {},
    "decay 1": {"optimizer.weight_decay": 1.0},
    "W_M rank 3": {"model.head_output": {"kind": "factorized", "rank": 3}},
}
STEPS = 600


@pytest.fixture(scope="module")
def engine():
    if missing := what_is_missing():
        pytest.skip(f"SLURM is not installed here: no {', '.join(missing)}")
    with cluster():
        yield


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A sweep of three runs, trained by the local launcher: (its file, its directory)."""
    folder = tmp_path_factory.mktemp("local")
    base = tiny(Path("text.txt"), STEPS)
    base["training"] |= {"steps_per_dispatch": 1, "evaluate_every": 300}
    file = write_sweep(folder, base=base, arms=ARMS, seeds=[0])
    write_plan(folder / "runs", make_plan(file))
    assert LocalLauncher(folder / "runs", 1).run(lambda: None)
    return file, folder / "runs"


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(slurm, "ASK_SECONDS", 0.5)


def records(directory):
    path = directory / "slurm" / "jobs.json"
    return json.loads(path.read_text()) if path.exists() else {}


def state_of(job):
    return job_states([job]).get(job)


def assert_equal(directory, reference):
    for run in statuses(directory):
        found, expected = directory / run.run_id, reference / run.run_id
        assert run.state == "finished" and run.reason is None
        assert metrics_bytes(found) == metrics_bytes(expected)
        keys = ("validation_loss", "train_loss", "step")
        one, other = RunDirectory(found).summary(), RunDirectory(expected).summary()
        assert [one[key] for key in keys] == [other[key] for key in keys]


def trained(directory, arm):
    """The run of an arm, once it has made some steps."""
    wait_until(lambda: records(directory))
    (run,) = (run for run in statuses(directory) if run.arm == arm)
    wait_until(lambda: last_step(directory / run.run_id))
    return run.run_id


def test_what_is_cancelled_loses_its_node_or_has_to_go_ends_as_if_it_had_run_here(engine, reference, tmp_path, capfd):
    file, local = reference
    directory = tmp_path / "runs"
    seen = {}

    def cancel():
        run = trained(directory, "W_o")
        seen["cancelled"] = job = records(directory)[run]["job"]
        asked("scancel", job)
        wait_until(lambda: records(directory)[run]["job"] != job)
        seen["summary"] = RunDirectory(directory / run).summary()

    def lose():
        run = trained(directory, "decay 1")
        seen["lost"] = job = records(directory)[run]["job"]
        node = asked("squeue", "--noheader", "--format=%N", f"--jobs={job}")
        asked("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        wait_until(lambda: "Restarts=1" in asked("scontrol", "show", "job", job))
        asked("scontrol", "update", f"nodename={node}", "state=resume")

    def preempt():
        run = trained(directory, "W_M rank 3")
        seen["preempted"] = job = records(directory)[run]["job"]
        node = asked("squeue", "--noheader", "--format=%N", f"--jobs={job}")
        asked("sbatch", f"--partition={FIRST}", f"--nodelist={node}", "--output=/dev/null", "--wrap=true")

    harming = [threading.Thread(target=harm, daemon=True) for harm in (cancel, lose, preempt)]
    for thread in harming:
        thread.start()
    code, out, _ = wm(capfd, "sweep", file, "--dir", directory, "--launcher", "slurm")
    for thread in harming:
        thread.join()
    assert code == 0 and "3 of 3 runs finished" in out
    assert_equal(directory, local)
    array = seen["cancelled"].removesuffix("_0")
    jobs = {run.arm: records(directory)[run.run_id]["job"] for run in statuses(directory)}
    assert jobs["decay 1"] == seen["lost"] == f"{array}_1", "SLURM itself queues again what lost its node"
    assert jobs["W_M rank 3"] == seen["preempted"] == f"{array}_2", "a job that has to go saves, and is queued again"
    assert not jobs["W_o"].startswith(f"{array}_")
    for job in (seen["lost"], seen["preempted"]):
        assert "Restarts=1" in asked("scontrol", "show", "job", job)
    log = directory / "slurm" / f"{array}_0_0_log.err"
    reason = f"SLURM job {array}_0 was cancelled; see {log}; submitted again, try 1 of 3"
    assert (seen["summary"]["state"], seen["summary"]["reason"]) == ("pending", reason)


def test_a_watcher_leaves_its_jobs_the_next_finds_them_and_a_time_limits_warning_is_heard(
    engine, reference, tmp_path, capfd
):
    file, local = reference
    directory = tmp_path / "runs"
    arm = "arms={W_o: {}}"
    command = ("sweep", file, arm, "--dir", directory, "--launcher", "slurm", "--time", 30)
    watcher = start_wm(*command, start_new_session=True)
    run = trained(directory, "W_o")
    os.killpg(watcher.pid, signal.SIGINT)
    out, err = watcher.communicate(timeout=60)
    assert watcher.returncode == 75 and "Traceback" not in err
    job = records(directory)[run]["job"]
    assert f"jobs go on; see them: wm status {directory}; cancel them: scancel {job}\n" in out
    assert out.endswith(f"interrupted; go on with: {shlex.join(['wm', *map(str, command)])}\n")
    assert state_of(job) == "RUNNING"

    asked("scancel", "--signal=USR2", job)
    code, out, _ = wm(capfd, *command)
    assert code == 0 and "1 of 1 runs finished" in out
    assert records(directory)[run]["job"] == job and records(directory)[run]["tries"] == 1
    assert "Restarts=1" in asked("scontrol", "show", "job", job)
    assert len(list((directory / "slurm").glob("*_submitted.pkl"))) == 1, "nothing was submitted twice"
    assert_equal(directory, local)


def test_a_job_of_several_runs_that_never_comes_further_is_given_up_with_its_last_words(engine, tmp_path):
    directory = tmp_path / "runs"
    write_plan(directory, make_plan(write_sweep(tmp_path)))
    options = SlurmOptions(parallel=1, more=parameters_of(["slurm_setup=['echo no such module >&2', 'exit 3']"]))
    launcher = SlurmLauncher(directory, options)
    assert launcher.run(lambda: None) and launcher.jobs() == []
    jobs = [records(directory)[run.run_id]["job"] for run in statuses(directory)]
    assert jobs[0] == jobs[1] != jobs[2] == jobs[3]
    for run, job in zip(statuses(directory), jobs, strict=True):
        log = directory / "slurm" / f"{job}_0_log.err"
        reason = f"SLURM job {job} failed: no such module; see {log} (3 times without coming further)"
        assert (run.state, run.reason) == ("failed", reason)
    assert len(list((directory / "slurm").glob("*_submitted.pkl"))) == 3 * 2


def test_what_slurm_refuses_is_said(engine, reference, tmp_path, capfd):
    file, directory = reference[0], tmp_path / "runs"
    where = ("--launcher", "slurm", "--partition", "nowhere")
    code, _, err = wm(capfd, "sweep", file, "--dir", directory, *where)
    assert code == 2 and "invalid partition specified: nowhere" in err and "Traceback" not in err
    assert {run.state for run in statuses(directory)} == {"pending"}


def test_options_that_cannot_be_are_refused_before_anything_is_written(tmp_path, capfd, monkeypatch):
    file, directory = write_sweep(tmp_path), tmp_path / "runs"
    for wrong, said in (
        (["--partition", "gpu"], "--launcher slurm beside it"),
        (["--launcher", "slurm", "--slurm", "qos"], "KEY=VALUE"),
        (["--launcher", "slurm", "--slurm", "nodes=2", "--slurm", "slurm_array=0-3"], "one task of an array"),
    ):
        code, _, err = wm(capfd, "sweep", file, "--dir", directory, *wrong)
        assert code == 2 and said in err
        assert not directory.exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = wm(capfd, "sweep", file, "--dir", directory, "--launcher", "slurm")
    assert code == 2 and "there is no srun on this one" in err

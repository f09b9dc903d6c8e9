"""Whole sweeps in real worker processes: what fails, dies, is stopped or is started twice."""

import os
import re
import shlex
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.head_output.own_kind import CODE
from tests.sweeps.mini import start_wm, trainings, wm, write_sweep
from tests.training.examples import TEXT, last_step, tiny, wait_until
from wmresearch.data.corpora import prepared_corpora
from wmresearch.reports.table import build_table
from wmresearch.sweeps import launchers, worker
from wmresearch.sweeps.launchers import LocalLauncher
from wmresearch.sweeps.plan import make_plan
from wmresearch.sweeps.store import missing, read_plan, statuses, write_plan
from wmresearch.training.interruption import StopRequest
from wmresearch.training.run_directory import RunDirectory


def offline(steps=20):
    return tiny(Path("text.txt"), steps) | {"tracking": {"wandb": {"mode": "offline"}}}


def states(directory):
    """Arm and seed → state."""
    return {(status.arm, status.seed): status.state for status in statuses(directory)}


def test_a_sweep_trains_all_of_its_runs_once_and_then_nothing(mini, copied, capfd):
    assert (mini / "code").read_text() == "0", (mini / "err").read_text()
    assert set(states(mini / "runs").values()) == {"finished"}
    assert set(trainings(mini / "runs").values()) == {1}
    out = (mini / "out").read_text()
    assert re.fullmatch(rf"mini: 6 of 6 runs finished in {mini}/runs \(.*\)\ntable: wm table {mini}/runs\n", out)
    file, directory = copied
    before = {path: path.stat().st_mtime_ns for path in directory.glob("*/*") if path.name != ".lock"}
    code, out, _ = wm(capfd, "sweep", file, "--dir", directory)
    assert code == 0 and "6 of 6 runs finished" in out
    assert {path: path.stat().st_mtime_ns for path in directory.glob("*/*") if path.name != ".lock"} == before


def test_what_diverges_what_no_memory_holds_and_what_lost_its_text_are_marked_and_the_rest_finishes(
    tmp_path, capfd, monkeypatch
):
    """A text that is not there from the start is refused at once: this one goes once the sweep is planned."""
    monkeypatch.setenv("WMRESEARCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "gone.txt").write_text(TEXT[::-1])
    arms = {
        "plain": {},
        "diverging": {"optimizer.learning_rate": 1e25, "optimizer.clip_norm": None},
        "too large": {"data.batch_size": 2**27},
        "without a text": {"data.corpus": {"kind": "text", "path": "gone.txt"}},
        "low rank": {"model.head_output": {"kind": "factorized", "rank": 2}},
    }
    file, directory = write_sweep(tmp_path, base=offline(), arms=arms), tmp_path / "runs"

    def lose():
        wait_until(lambda: (directory / "sweep.json").exists())
        (tmp_path / "gone.txt").unlink()
        for corpus in prepared_corpora():
            if corpus.name == "gone.txt":
                shutil.rmtree(corpus.folder)

    loser = threading.Thread(target=lose)
    loser.start()
    code, out, err = wm(capfd, "sweep", file, "--dir", directory)
    loser.join()
    assert code == 1 and "4 of 10 runs finished" in out and "Traceback" not in out + err
    ended = {"plain": "finished", "low rank": "finished", "diverging": "diverged"}
    assert states(directory) == {(arm, seed): ended.get(arm, "failed") for arm in arms for seed in (0, 1)}
    reasons = {run.arm: run.reason for run in statuses(directory)}
    assert str(tmp_path / "gone.txt") in reasons["without a text"]
    assert "Unable to allocate" in reasons["too large"]
    failures = {run.arm: RunDirectory(directory / run.run_id).summary()["failure"] for run in statuses(directory)}
    assert (failures["too large"], failures["without a text"]) == ("out_of_memory", "bad_config")
    rows = {row.arm: row for row in build_table(directory).rows}
    assert {arm: (row.finished, row.flags) for arm, row in rows.items()} == {
        "plain": (2, ()), "diverging": (0, ("diverged",)), "too large": (0, ("failed",)),
        "without a text": (0, ("failed",)), "low rank": (2, ()),
    }  # fmt: skip
    assert rows["low rank"].delta.n == 2
    code, out, _ = wm(capfd, "table", directory)
    notes = [line for line in out.splitlines() if line.startswith("- Not counted of ")]
    assert code == 0 and [note.split(": ")[0] for note in notes] == [
        f"- Not counted of {arm}" for arm in ("diverging", "too large", "without a text")
    ]


def test_what_dies_fails_or_diverges_takes_nothing_else_with_it(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(launchers, "POLL_SECONDS", 0.05)
    arms = {
        "killed": {"training.evaluate_every": 5},
        "broken": {"training.evaluate_every": 6},
        "diverging": {"optimizer.learning_rate": 1e25, "optimizer.clip_norm": None},
        "plain": {},
    }
    file, directory = write_sweep(tmp_path, base=offline(), arms=arms, seeds=[0]), tmp_path / "runs"
    folders = {run.arm: directory / run.run_id for run in make_plan(file).runs}
    (folders["broken"] / "metrics.jsonl").mkdir(parents=True)  # in the way

    killed_once = []

    def kill():
        """Each worker that comes to it."""
        run = RunDirectory(folders["killed"])
        while run.state() != "failed":
            process = (run.status() or {}).get("process")
            if run.state() == "running" and process not in (None, *killed_once):
                killed_once.append(process)
                os.kill(int(process.split()[1]), signal.SIGKILL)
            time.sleep(0.005)

    killer = threading.Thread(target=kill)
    killer.start()
    code, out, err = wm(capfd, "sweep", file, "--dir", directory)
    killer.join()
    assert code == 1
    assert states(directory) == {
        ("killed", 0): "failed", ("broken", 0): "failed", ("diverging", 0): "diverged", ("plain", 0): "finished",
    }  # fmt: skip
    killed, broken = (RunDirectory(folders[arm]).summary() for arm in ("killed", "broken"))
    assert len(killed_once) == 2, "it is tried once more, with a worker for itself"
    assert "was killed by SIGKILL" in killed["reason"] and str(directory / "worker.log") in killed["reason"]
    assert (killed["failure"], broken["failure"]) == ("killed", "error")
    assert killed["parameters"] == broken["parameters"] > 0, "what was known is kept"
    assert broken["reason"].startswith("IsADirectoryError")
    assert "IsADirectoryError" in (folders["broken"] / "error.txt").read_text()
    assert "1 of 4 runs finished" in out and "Traceback" not in out + err
    for arm, state in (("killed", "failed"), ("broken", "failed"), ("diverging", "diverged")):
        assert re.search(rf"^  {state}: {arm} +seed 0 \({folders[arm].name}\) \S", out, re.MULTILINE)
    begun = trainings(directory)

    (folders["broken"] / "metrics.jsonl").rmdir()
    again = out.splitlines()[-1].removeprefix("run what is missing with: ")
    code, out, _ = wm(capfd, *shlex.split(again)[1:], "--jobs", 2)
    assert code == 0, "a run that diverged is a result"
    assert "3 of 4 runs finished" in out and out.endswith(f"table: wm table {directory}\n")
    more = {folders[arm].name: begun.get(folders[arm].name, 0) + 1 for arm in ("killed", "broken")}
    assert trainings(directory) == begun | more
    table = build_table(directory)
    rows = {row.arm: row for row in table.rows}
    assert (rows["diverging"].n, rows["diverging"].diverged) == (0, 1) and any(
        "diverged" in f for f in rows["diverging"].flags
    )
    assert {arm: row.n for arm, row in rows.items()} == {"killed": 1, "broken": 1, "diverging": 0, "plain": 1}


def test_a_sweep_that_is_told_to_stop_saves_and_goes_on_where_it_was(tmp_path, capfd, monkeypatch):
    base = tiny(Path("text.txt"), steps=600)
    base["training"] |= {"steps_per_dispatch": 1, "evaluate_every": 300}
    file, directory = write_sweep(tmp_path, base=base, arms={"W_o": {}}, seeds=[0]), tmp_path / "runs"
    (run,) = make_plan(file).runs

    # Only the launcher is told, and its worker has hardly begun to be a Python.
    monkeypatch.setattr(launchers, "POLL_SECONDS", 0.01)

    def stop():
        wait_until((directory / "worker.log").exists)
        os.kill(os.getpid(), signal.SIGTERM)

    stopper = threading.Thread(target=stop)
    stopper.start()
    code, out, _ = wm(capfd, "sweep", file, "--dir", directory)
    stopper.join()
    assert code == 75 and "interrupted; go on with: wm sweep" in out
    assert set(states(directory).values()) <= {"pending", "preempted"}

    # Ctrl-C: the terminal tells the launcher and its workers at once.
    process = start_wm("sweep", file, "--dir", directory, cwd=tmp_path, start_new_session=True)
    wait_until(lambda: last_step(directory / run.run_id))
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 75, err
    assert "Traceback" not in err
    assert states(directory) == {("W_o", 0): "preempted"}
    assert "0 of 1 runs finished" in out
    last = out.splitlines()[-1]
    command = f"wm sweep {file} --dir {directory}"
    assert last == f"interrupted; go on with: {command}"
    assert 0 < RunDirectory(directory / run.run_id).summary()["step"] < 600
    timed = (directory / run.run_id / "timing.jsonl").read_bytes()

    code, out, _ = wm(capfd, *shlex.split(command)[1:])
    assert code == 0 and "1 of 1 runs finished" in out
    again = (directory / run.run_id / "timing.jsonl").read_bytes()
    assert again.startswith(timed), "it went on, and did not begin anew"


SLOW = """
        import inspect, pathlib, threading, time
        if threading.current_thread().name == "compiling ahead":
            if any(frame.function == "evaluate" for frame in inspect.stack()):
                pathlib.Path(__file__).with_name("slow").touch()
                time.sleep(120)
"""


def test_a_stopped_sweep_does_not_wait_for_what_is_compiled_ahead(tmp_path):
    before = '    def read_weight(self) -> Float[Array, "d k r"]:\n'
    (tmp_path / "own.py").write_text(CODE.replace(before, before + SLOW.lstrip("\n")))
    base = tiny(Path("text.txt"), 10**6) | {"parallel": {"mesh": {"run": 2}}}
    base["training"] |= {"evaluate_every": None, "diagnostics": False}
    arms = {"own": {"model.head_output": {"kind": "custom", "file": "own.py", "settings": {"rank": 3}}}}
    file, directory = write_sweep(tmp_path, base=base, arms=arms), tmp_path / "runs"
    process = start_wm("sweep", file, "--dir", directory, cwd=tmp_path, start_new_session=True)
    runs = [directory / run.run_id for run in make_plan(file).runs]
    wait_until(lambda: any((run / "slow").exists() for run in runs) and all(map(last_step, runs)))
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75 and "Traceback" not in err
    assert states(directory) == {("own", 0): "preempted", ("own", 1): "preempted"}
    assert (directory / "worker.log").read_text() == ""


def test_two_launches_at_once_train_no_run_twice(tmp_path):
    file, directory = write_sweep(tmp_path, base=offline()), tmp_path / "runs"
    write_plan(directory, make_plan(file))
    both = [LocalLauncher(directory, 1) for _ in range(2)]
    threads = [threading.Thread(target=launcher.run, args=(lambda: None,)) for launcher in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(states(directory).values()) == {"finished"}
    assert trainings(directory) == {run["run_id"]: 1 for run in read_plan(directory)["runs"]}


@pytest.mark.parametrize("change", ["deleted", "changed"])
def test_a_run_whose_text_is_gone_since_the_plan_fails_and_says_so(change, tmp_path):
    file, directory = write_sweep(tmp_path), tmp_path / "runs"
    write_plan(directory, make_plan(file))
    if change == "deleted":
        (tmp_path / "text.txt").unlink()
    else:
        (tmp_path / "text.txt").write_text("another text\n" * 300)
    run = read_plan(directory)["runs"][0]
    answer = worker.train_one(directory, "mini", run, StopRequest())
    assert answer == {"run_id": run["run_id"], "state": "failed", "failure": "bad_config"}
    folder = RunDirectory(directory / run["run_id"])
    summary = folder.summary()
    assert summary["state"] == "failed" and summary["arm"] == run["arm"]
    assert summary["reason"].startswith("ConfigError: ") and "\n" not in summary["reason"]
    expected = "text.txt" if change == "deleted" else "has changed since the sweep was planned"
    assert expected in summary["reason"]
    assert (folder.path / "error.txt").read_text().startswith("Traceback")
    assert run in missing(directory), "it is tried again at the next start"

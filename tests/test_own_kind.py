"""The README's example of a kind of one's own, as its reader would use it: a sweep, its table, a spectrum, an edit."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.head_output.own_kind import ARM, CODE, SECTION, write_example
from tests.sweeps.mini import ARMS, wm, write_sweep
from tests.training.examples import TEXT, last_step, tiny
from wmresearch.config import ConfigError, parse_run, yaml_text
from wmresearch.config.traced import program_key
from wmresearch.sweeps.launchers import LocalLauncher
from wmresearch.sweeps.plan import make_plan
from wmresearch.sweeps.store import read_plan, statuses, write_plan
from wmresearch.training.loop import train
from wmresearch.training.run_directory import RunDirectory

(NAME,) = ARM
STEPS = 6
SWEEP_ARMS = {"W_o": ARMS["W_o"], **ARM}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with the file, a run config that uses it, and a text; the command is given elsewhere."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    write_example(tmp_path)
    write_run(tmp_path)
    return tmp_path


def write_run(folder, **settings):
    data = tiny(Path("text.txt"), STEPS)
    data["model"]["head_output"] = {"kind": "custom", "file": "symmetric.py", "settings": {"rank": 3} | settings}
    (folder / "run.yaml").write_text(yaml_text.write(data), encoding="utf-8")


def test_the_readmes_arm_trains_in_a_sweep_and_is_counted_and_looked_at(capfd, folder):
    file = write_sweep(folder, base=tiny(Path("text.txt"), STEPS), arms=SWEEP_ARMS, seeds=[0])
    code, out, err = wm(capfd, "sweep", file, "--dir", folder / "runs")
    assert code == 0, out + err
    code, out, _ = wm(capfd, "table", folder / "runs", "--format", "json")
    rows = {row["arm"]: row for row in json.loads(out)["rows"]}
    assert code == 0 and rows[NAME]["finished"] == 1
    rank = ARM[NAME]["model.head_output"]["settings"]["rank"]
    assert rows[NAME]["head_output_parameters"] == 16 * 2 * rank + 2 * rank + 2 * rank + 16  # A, s, and biases
    run = next(run for run in json.loads((folder / "runs/sweep.json").read_text())["runs"] if run["arm"] == NAME)
    write_example(folder, "an edit that is no Python")  # the run is looked at by its own copy
    code, out, err = wm(capfd, "spectrum", folder / "runs" / run["run_id"], "--format", "json")
    assert code == 0, err
    assert len(json.loads(out)["heads"]) == 2
    kept = yaml_text.read(folder / "runs" / run["run_id"] / "config.yaml")["model"]["head_output"]
    assert kept["file"] == str(folder / "runs" / run["run_id"] / "head_output.py")
    assert Path(kept["file"]).read_text(encoding="utf-8") == CODE


def test_count_calls_it_by_its_name_and_the_command_line_starts_here(capfd, folder):
    code, out, err = wm(capfd, "count", folder / "run.yaml")
    assert code == 0, err
    assert "head outputs (symmetric)" in out and "head output `symmetric`, 1 layers:" in out
    assert re.search(r"^ +A +16 × 2 × 3 = 96 parameters a layer", out, re.MULTILINE)
    code, _, err = wm(capfd, "count", folder / "run.yaml", "model.head_output.file=symmetric.py")
    assert code == 2 and f"looked at {folder / 'here/symmetric.py'}" in err


def test_the_command_that_the_readme_counts_it_with_works_as_printed(capfd, folder, monkeypatch):
    (command,) = re.findall(r"`(wm count [^`]*)`", SECTION)
    (folder / "configs").symlink_to(Path(__file__).resolve().parents[1] / "configs")
    monkeypatch.chdir(folder)
    code, out, err = wm(capfd, *command.split()[1:])
    assert code == 0 and "head outputs (symmetric)" in out, err


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda folder: (folder / "symmetric.py").unlink(), ["model.head_output.file = ", "a Python file"]),
        (lambda folder: write_example(folder, CODE + "("), ["symmetric.py, line ", "SyntaxError"]),
        (lambda folder: write_example(folder, "x = 1"), ["symmetric.py\n", "one class derived from HeadOutput"]),
        (lambda folder: write_run(folder, rnk=3), ["model.head_output.settings.rnk = 3", "did you mean 'rank'?"]),
        (lambda folder: write_run(folder, rank="3"), ['settings.rank = "3"', "a whole number of at least 1"]),
    ],
    ids=["missing", "syntax", "no class", "unknown", "type"],
)
def test_what_is_wrong_is_said_before_anything_is_written(edit, words, capfd, folder):
    edit(folder)
    base = yaml_text.read(folder / "run.yaml")
    write_sweep(folder, base=base, arms={"mine": {}, "W_o": ARMS["W_o"]}, seeds=[0])
    shutil.copy(folder / "base.yaml", folder / "run.yaml")
    before = set(folder.rglob("*"))
    for request in (["train", "run.yaml"], ["train", "run.yaml", "--dir", "x"], ["sweep", "sweep.yaml"]):
        code, out, err = wm(capfd, request[0], folder / request[1], "training.log_every=0", *request[2:])
        assert (code, out) == (2, "") and "2 problems" in err and "Traceback" not in err
        assert all(word in err for word in words), err
        assert set(folder.rglob("*")) == before


def test_an_edited_file_is_another_run_and_its_directory_is_refused(capfd, folder):
    request = ("train", folder / "run.yaml", "--dir", folder / "run")
    assert wm(capfd, *request)[0] == 0
    old = RunDirectory(folder / "run").summary()
    shutil.move(folder / "symmetric.py", folder / "moved.py")  # another place is the same run, which is finished
    assert wm(capfd, *request, f"model.head_output.file={folder / 'moved.py'}")[0] == 0
    write_example(folder, CODE + "\n# an edit\n")
    code, out, err = wm(capfd, *request)
    assert (code, out) == (2, "") and "2 problems" in err
    assert f"{folder / 'run'} = run {old['run_id']}" in err
    assert "config.yaml: model.head_output.sha256 = " in err and "choose another --dir" in err
    assert RunDirectory(folder / "run").summary() == old
    assert wm(capfd, "train", folder / "run.yaml", "--dir", folder / "another")[0] == 0
    assert RunDirectory(folder / "another").summary()["run_id"] != old["run_id"]


@pytest.mark.parametrize("batching", ["map", "vmap"])
def test_runs_of_it_are_a_cohort_although_each_has_its_copy(batching, folder):
    base = tiny(Path("text.txt"), STEPS) | {"execution": {"cohort": batching}, "parallel": {"mesh": {"run": 2}}}
    file = write_sweep(folder, base=base, arms=ARM)
    write_plan(folder / "runs", make_plan(file))
    runs = read_plan(folder / "runs")["runs"]
    configs = [RunDirectory(folder / "runs" / run["run_id"]).config() for run in runs]
    assert len({config.model.head_output.file for config in configs}) == 2
    assert {program_key(config) for config in configs} == {run["cohort"] for run in runs}
    assert len({run["cohort"] for run in runs}) == 1
    assert LocalLauncher(folder / "runs", 1).run(lambda: None)
    assert [run.state for run in statuses(folder / "runs")] == ["finished"] * 2


def test_a_sweep_goes_on_by_the_file_it_was_planned_with(folder, capfd):
    file = write_sweep(folder, base=tiny(Path("text.txt"), STEPS), arms=SWEEP_ARMS, seeds=[0])
    plan = make_plan(file)
    write_plan(folder / "runs", plan)
    write_example(folder, "an edit that is no Python")
    assert LocalLauncher(folder / "runs", 1).run(lambda: None)
    assert {run.state for run in statuses(folder / "runs")} == {"finished"}
    write_example(folder, CODE + "# an edit")
    other = {run.arm: run.run_id for run in make_plan(file).runs}
    same = {run.arm: run.run_id for run in plan.runs}
    assert other["W_o"] == same["W_o"] and other[NAME] != same[NAME]


def test_a_run_whose_own_copy_was_changed_is_not_gone_on_with(folder):
    file = write_sweep(folder, base=tiny(Path("text.txt"), STEPS), arms=SWEEP_ARMS, seeds=[0])
    plan = make_plan(file)
    write_plan(folder / "runs", plan)
    run = next(run for run in plan.runs if run.arm == NAME)
    path = folder / "runs" / run.run_id
    (path / "head_output.py").write_text(CODE + "# an edit", encoding="utf-8")
    config = parse_run(yaml_text.read(path / "config.yaml"), str(path / "config.yaml"))
    with pytest.raises(ConfigError, match="has changed since"):
        train(config, path)
    assert RunDirectory(path).state() == "pending" and last_step(path) == 0

"""`wm` as its users meet it: help whose examples work, exit codes, what goes where, nothing left by a wrong request."""

import csv
import io
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scipy import stats

from tests.sweeps.mini import mini_sweep, start_wm, wm, write_sweep
from tests.training.examples import TEXT, tiny
from wmresearch.cli import app
from wmresearch.config import yaml_text
from wmresearch.reports.listings import status_screen
from wmresearch.terminal import ProgressLine
from wmresearch.training.run_directory import RunDirectory

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where a command is given: a folder with a clone's configs, a run config and a sweep. Nobody's terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    (tmp_path / "run.yaml").write_text(yaml_text.write(tiny(Path("text.txt"))), encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def mini():
    return mini_sweep()


def commands():
    """Every command there is, as one types it."""
    import typer.main

    def under(command, names):
        inner = getattr(command, "commands", None)
        if inner is None:
            yield " ".join(names)
        for name, sub in (inner or {}).items():
            yield from under(sub, [*names, name])

    return sorted(under(typer.main.get_command(app), []))


def files(folder):
    return {path for path in folder.rglob("*") if "configs" not in path.relative_to(folder).parts}


@pytest.mark.parametrize("command", commands())
def test_the_example_in_the_help_of_a_command_works_as_printed(command, capfd, folder, mini):
    code, out, err = wm(capfd, *command.split(), "--help")
    assert (code, err) == (0, "")
    examples = re.findall(r"^ *Example: (wm .*?) *$", out, re.MULTILINE)
    assert len(examples) == 1 and examples[0].startswith(f"wm {command}")
    shutil.copytree(mini / "runs", folder / "runs" / "quickstart")
    if command != "train":  # whose example makes it
        shutil.copytree(next((mini / "runs").glob("*/checkpoints")).parent, folder / "runs" / "first")
    code, out, err = wm(capfd, *shlex.split(examples[0])[1:])
    assert code == 0, err
    assert out and "Traceback" not in out + err


def test_help_lists_the_commands_and_waits_for_no_heavy_import():
    heavy = "jax", "flax", "tensorflow_datasets", "wandb", "scipy", "numpy", "orbax", "matplotlib"
    script = (
        "import sys; from wmresearch.cli import main\n"
        "sys.argv = ['wm', '--help']\n"
        f"try: main()\nfinally: print([name for name in {heavy} if name in sys.modules])"
    )
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    took = time.perf_counter() - started
    assert (done.returncode, done.stderr) == (0, "")
    assert {"count", "data list", "data prepare", "status", "sweep", "table", "train"} <= set(commands())
    assert all(name.split()[0] in done.stdout for name in commands())
    assert done.stdout.endswith("[]\n")
    assert took < 5, "0.5 s on an idle machine"


def test_w_o_of_llama3_8b(capfd):
    code, out, err = wm(capfd, "count", "llama3-8b")
    assert (code, err) == (0, "")
    line = next(line for line in out.splitlines() if line.split()[:1] == ["W_O"])
    share = re.fullmatch(
        r" *W_O +4096 × 4096 = 16,777,216 parameters a layer, 536,870,912 over 32 layers, (.*)% of the model", line
    )
    assert share and float(share[1]) == pytest.approx(100 * 536_870_912 / 8_030_261_248, abs=0.1)


def test_count_as_json(capfd):
    code, out, _ = wm(capfd, "count", "llama3-8b", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["parameters"] == sum(part["parameters"] for part in data["parts"]) == 8_030_261_248
    weights = {weight["symbol"]: weight for weight in data["head_output_weights"]}
    assert weights["W_O"]["all_layers"] == 536_870_912
    assert data["head_output_parameters"] == sum(weight["all_layers"] for weight in weights.values())
    assert data["flops_per_token"] > 6 * 7e9
    code, out, _ = wm(capfd, "count", "llama3-8b", "model.head_output={kind: factorized, rank: 8}", "--json")
    assert json.loads(out)["head_output_parameters"] < data["head_output_parameters"] / 5


def test_count_on_a_mesh(capfd):
    """Of 16 devices, which are not here, the prediction alone; of 2, the compiled step too."""
    code, out, err = wm(capfd, "count", "llama3-70b", "--mesh", "data=2,head=8")
    assert (code, err) == (0, "")
    assert "\nmesh: data 2 × head 8 = 16 devices\n" in out and "W_O   1024 × 8192 of 8192 × 8192" in out
    assert re.search(r"^attention +forward +all-reduce +head +8 +8,192 +16 KiB +80 ", out, re.MULTILINE)
    assert "it takes 16 devices, and there are 8" in out
    assert "XLA_FLAGS=--xla_force_host_platform_device_count=16" in out
    code, out, err = wm(capfd, "count", "run.yaml", "--mesh", "head=2")
    assert code == 0 and err.startswith("compiling a training step")
    assert re.search(r"^model +all-reduce +head +2 .* 1\.00 ", out, re.MULTILINE)
    code, out, err = wm(capfd, "count", "run.yaml", "--mesh", "head=2", "--no-compile")
    assert (code, err) == (0, "") and "was not compiled" in out


def test_count_on_a_mesh_as_json(capfd):
    """That of the config, unless another is asked for."""
    request = ("count", "run.yaml", "parallel.mesh={data: 2, head: 2}", "--json", "--no-compile")
    data = json.loads(wm(capfd, *request)[1])["mesh"]
    assert list(data) == ["axes", "devices", "implementation", "device", "predicted", "compiled", "not_compiled"]
    assert data["axes"] == {"data": 2, "head": 2} and data["compiled"] is None
    assert data["device"]["parts"]["query heads"] == {"all": 2, "on_device": 1, "empty": 0, "copies": 1}
    assert {"imbalance", "weights", "parameters", "parameter_bytes", "optimizer_bytes", "cache_bytes_per_token"} < {
        *data["device"]
    }
    assert list(data["predicted"][0]) == [
        "what", "when", "kind", "axis", "devices", "numbers", "times", "dtype", "tokens", "numbers_per_token",
        "bytes_per_token", "numbers_per_step", "bytes_per_step",
    ]  # fmt: skip
    found = json.loads(wm(capfd, *request[:-1], "--mesh", "head=2")[1])["mesh"]
    assert found["axes"] == {"data": 1, "head": 2} and found["not_compiled"] is None
    assert {(each["kind"], each["axis"], each["ratio"]) for each in found["compiled"]} == {("all-reduce", "head", 1.0)}
    assert json.loads(wm(capfd, "count", "run.yaml", "--json")[1])["mesh"] is None


def test_a_run_reports_on_stdout_and_its_progress_on_stderr(capfd, folder):
    code, out, err = wm(capfd, "train", "run.yaml", "--dir", "runs/first")
    assert code == 0
    assert out.startswith("finished: runs/first\n  validation loss ") and "nats/token (whole split)" in out
    assert "step 0/20" in err and "\x1b" not in out + err and "\r" not in err
    summary = RunDirectory(folder / "runs/first").summary()
    assert f"{summary['validation_loss']:.4f}" in out and summary["state"] == "finished"
    code, again, _ = wm(capfd, "train", "run.yaml", "--dir", "runs/first")
    assert (code, again) == (0, out), "a finished run is not run again"
    code, out, _ = wm(capfd, "train", "run.yaml")
    assert code == 0 and out.startswith(f"finished: runs/run/{summary['run_id']}\n")


def test_a_run_that_diverges_ends_with_1_and_one_that_is_busy_too(capfd, folder):
    request = ("train", "run.yaml", "optimizer.learning_rate=1e25", "optimizer.clip_norm=null", "--dir", "far")
    code, out, _ = wm(capfd, *request)
    assert code == 1 and out.startswith("diverged: far\n  not finite at step ")
    run = RunDirectory(folder / "busy")
    with run.locked():
        run.write_status("running")
        code, out, err = wm(capfd, "train", "run.yaml", "--dir", "busy")
    assert (code, out) == (1, "")
    assert re.search(
        rf"wm: {run.path}: process {os.getpid()} on .* is working on this run; wait for it or stop it", err
    )


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ("train run.yaml optimizer.learning_rat=1e-3", ("optimizer.learning_rat", "did you mean 'learning_rate'?")),
        ("train nothing.yaml", ("nothing.yaml",)),
        ("train run.yaml model.d_model=15 training.steps=0", ("model.d_model", "training.steps", "2 problems")),
        ("train run.yaml data.corpus.path=nothing.txt", ("data.corpus.path", "nothing.txt")),
        ("train run.yaml model.context=99999", ("model.context", "since the train split has")),
        ("train run.yaml --dir run.yaml", ("run.yaml", "a folder that can be made and written")),
        ("sweep run.yaml", ("a sweep, and this is a run config",)),
        ("sweep sweep.yaml seeds=[0,0]", ("seeds.1", "each seed once")),
        ("sweep sweep.yaml --dir text.txt", ("text.txt", "a folder that can be made and written")),
        ("sweep sweep.yaml --jobs 0", ("--jobs",)),
        ("status nothing", ("nothing", "the directory of a sweep")),
        ("table nothing", ("nothing/sweep.json", "no such directory")),
        ("table nothing --format html", ("--format", "html")),
        ("count llama3-9b", ("llama3-9b", "did you mean 'llama3-8b'?")),
        ("count run.yaml --mesh heads=2", ("parallel.mesh.heads", "did you mean 'head'?")),
        (
            "count run.yaml --mesh data=2,head=two",
            ("mesh.head = two", "a whole number of at least 1, or auto"),
        ),
        ("count run.yaml --mesh data=2,head", ("--mesh", "data=2,head", "for example data=2,head=4")),
        ("count run.yaml --mesh head=1,head=2", ("--mesh", "each axis once")),
        ("count run.yaml --mesh head=3", ("parallel.mesh.head", "at most model.n_heads = 2")),
        ("count run.yaml --mesh run=2", ("--mesh", "each axis once", "data=2,head=4")),
        ("count llama3-8b --mesh data=3", ("parallel.mesh.data", "a divisor of data.batch_size = 512: 1, 2, 4, 8")),
        ("data prepare ./nothing", ("nothing",)),
        ("trian run.yaml", ("trian",)),
    ],
)
def test_a_wrong_request_ends_with_2_says_why_and_leaves_nothing(request_, words, capfd, folder):
    write_sweep(folder)
    before = files(folder)
    code, out, err = wm(capfd, *request_.split())
    assert (code, out) == (2, "")
    assert all(word in err for word in words), err
    assert "Traceback" not in err
    assert files(folder) == before


def test_a_dry_run_lists_the_runs_with_their_parameters_and_writes_nothing(capfd, folder):
    write_sweep(folder, seeds=[3, 4], grid={"optimizer.learning_rate": [1e-3, 1e-2]})
    before = files(folder)
    code, out, _ = wm(capfd, "sweep", "sweep.yaml", "--dry-run")
    head, *lines = out.splitlines()
    assert code == 0 and lines[-1] == "8 runs in runs/mini"
    assert head.split()[:4] == ["run", "arm", "settings", "seed"]
    assert len(lines[:8]) == 8 and all("pending" in row for row in lines[:8])
    standard, rank = lines[10:12]
    assert standard.split()[:3] == ["W_o", "4", "7,664"] and rank.split()[:5] == ["W_M", "rank", "3", "4", "7,334"]
    assert "MFLOP" in standard and "KiB" in standard and "on disk; --measure times a step" in lines[13]
    assert files(folder) == before


def test_status_shows_each_run(capfd, mini):
    code, out, err = wm(capfd, "status", mini / "runs")
    assert (code, err) == (0, "")
    rows = out.splitlines()[1:]
    assert len(rows) == 6 and all("finished" in row and "20/20" in row for row in rows)


def test_watching_a_sweep_tells_what_changes_until_all_runs_have_ended(mini, tmp_path):
    folder = tmp_path / "runs"
    shutil.copytree(mini / "runs", folder, symlinks=True)
    ids = [run["run_id"] for run in json.loads((folder / "sweep.json").read_text())["runs"]]

    def state(index, name, **more):
        path = folder / ids[index] / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"state": name} | more))

    state(0, "running")
    state(1, "pending")
    process = start_wm("status", folder, "--watch", "--every", "0.1")
    assert process.stdout.readline() == "6 runs: 1 running (silent), 1 pending, 4 finished\n"
    state(0, "failed", reason="lost")
    assert process.stdout.readline() == "6 runs: 1 failed, 1 pending, 4 finished\n"
    state(1, "finished")
    assert process.communicate(timeout=60) == ("6 runs: 1 failed, 5 finished\n", "")
    assert process.returncode == 0


def test_a_screen_shows_first_what_runs_or_failed_and_how_much_more_there_is(mini):
    text, goes_on = status_screen(mini / "runs", 5)
    lines = text.splitlines()
    assert not goes_on and lines[0] == "6 runs: 6 finished"
    assert len(lines) == 5 and lines[-1] == "… and 4 more" and lines[2].split()[1] == "W_o"
    assert len(status_screen(mini / "runs", 50)[0].splitlines()) == 8


def losses_of(mini, arm):
    plan = json.loads((mini / "runs" / "sweep.json").read_text())["runs"]
    found = {run["seed"]: RunDirectory(mini / "runs" / run["run_id"]).summary() for run in plan if run["arm"] == arm}
    return {seed: summary["validation_loss"] for seed, summary in found.items()}


def test_the_table_is_what_scipy_makes_of_the_summaries(capfd, mini):
    code, out, err = wm(capfd, "table", mini / "runs", "--format", "json")
    assert (code, err) == (0, "")
    table = json.loads(out)
    assert (table["sweep"], table["baseline"]) == ("mini", "W_o")
    rows = {row["arm"]: row for row in table["rows"]}
    assert list(rows) == ["W_o", "W_M rank 3", "decay 1"] and rows["W_o"]["delta"] is None
    base, ps = losses_of(mini, "W_o"), {}
    for arm, row in rows.items():
        losses = losses_of(mini, arm)
        assert (row["n"], row["planned"], row["finished"], row["failed"]) == (2, 2, 2, 0)
        sample = list(losses.values())
        low, high = stats.t.interval(0.95, 1, statistics.mean(sample), stats.sem(sample))
        found = row["validation_loss"]
        assert (found["mean"], found["low"], found["high"]) == pytest.approx((statistics.mean(sample), low, high))
        assert found["sd"] == pytest.approx(statistics.stdev(sample))
        if row["delta"]:
            test = stats.ttest_rel([losses[seed] for seed in base], list(base.values()))
            interval = test.confidence_interval(0.95)
            delta = row["delta"]
            mean = statistics.mean(losses[seed] - base[seed] for seed in base)
            expected = (mean, interval.low, interval.high, test.pvalue)
            assert (delta["mean"], delta["low"], delta["high"], delta["p"]) == pytest.approx(expected, rel=1e-6)
            ps[arm] = delta["p"]
    small, large = sorted(ps, key=ps.__getitem__)
    assert rows[small]["delta"]["p_holm"] == pytest.approx(min(1, 2 * ps[small]))
    assert rows[large]["delta"]["p_holm"] == pytest.approx(min(1, max(2 * ps[small], ps[large])))


def test_the_table_says_the_same_in_every_format(capfd, mini):
    texts = {form: wm(capfd, "table", mini / "runs", "--format", form) for form in ("md", "csv", "tex", "json")}
    assert {(code, err) for code, _, err in texts.values()} == {(0, "")}
    rows = json.loads(texts["json"][1])["rows"]
    listed = list(csv.DictReader(io.StringIO(texts["csv"][1])))
    assert [row["arm"] for row in listed] == [row["arm"] for row in rows]
    for row in rows:
        mean = f"{row['validation_loss']['mean']:.2f}"
        assert mean in texts["md"][1] and mean in texts["tex"][1]
        assert f"{row['parameters']:,}" in texts["md"][1]
    assert r"\toprule" in texts["tex"][1] and "W_M rank 3" in texts["md"][1] and r"W\_M rank 3" in texts["tex"][1]


def test_corpora_are_listed_and_prepared(capfd, folder):
    code, out, _ = wm(capfd, "data", "prepare", "text.txt")
    assert code == 0 and out.splitlines()[1].startswith("text.txt")
    assert re.search(r"train [\d.]+ ?kB, validation \d+ ?B, test \d+ ?B", out)
    code, out, _ = wm(capfd, "data", "list")
    assert code == 0 and "text.txt" in out and "your own text" in out and "wm data prepare" in out


def test_progress_is_one_live_line_in_a_terminal_and_a_line_now_and_then_in_a_log(capfd, monkeypatch):
    line = ProgressLine(log_seconds=1000)
    for step in range(5):
        line.update(f"step {step}")
    line.update("evaluated", force=True)
    line.update("evaluated", force=True)
    line.close()
    assert capfd.readouterr() == ("", "step 0\nevaluated\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "12")
    line = ProgressLine()
    line.update("step 1")
    line.update("a text that is longer than the line")
    line.say("stays")
    line.close()
    assert capfd.readouterr() == ("", "\r\x1b[2Kstep 1\r\x1b[2Ka text tha…\r\x1b[2Kstays\n")


def test_a_closed_pipe_is_no_error_of_ours(mini):
    process = start_wm("status", mini / "runs")
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait()

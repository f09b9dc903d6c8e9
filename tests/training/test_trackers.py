"""wandb itself, in processes of its own, its files read back with `wandb leet inspect`."""

import functools
import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from wmresearch.config.training import TrainingConfig, WandbConfig
from wmresearch.training.mirror import is_drawn
from wmresearch.training.spectrum_image import draw_spectra
from wmresearch.training.trackers import NoTracker, RunIdentity, make_tracker, requested_mode

HEAD = """
import sys, time
from pathlib import Path
import numpy as np
from wmresearch.config.training import WandbConfig
from wmresearch.training.trackers import RunIdentity, make_tracker

def start(run_id, directory, mode="offline", **more):
    config = {
        "model": {"d_model": 128, "head_output": {"kind": "factorized", "rank": 4}},
        "optimizer": {"betas": [0.9, 0.95], "clip_norm": None, "learning_rate": 1e-3},
        "seed": 0,
    }
    name, tags = f"W_M rank 4, seed {run_id}", ("W_M rank 4", "x" * 80)
    identity = RunIdentity(run_id, name, "quickstart", "report", tags, "wm sweep", config)
    return make_tracker(WandbConfig(mode=mode, project="project", entity="team"), identity, Path(directory), **more)
"""


def environment(home, **more):
    home.mkdir(exist_ok=True)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WANDB") and key != "NETRC"}
    return kept | {"HOME": str(home), "TERM": "dumb"} | more


@pytest.fixture(scope="module")
def python():
    """Start a Python in an empty folder of its own; warnings are errors there too."""
    started = []

    def start(script, folder, prefix=(), **more):
        cwd = folder / "cwd"
        cwd.mkdir(parents=True)
        command = [*prefix, sys.executable, "-W", "error", "-c", HEAD + script, str(folder / "run")]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        streams |= {"env": environment(folder / "home")} | more
        started.append(subprocess.Popen(command, cwd=cwd, **streams))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ended(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@functools.cache
def wandb_json(directory, *options):
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", *options, str(directory / "wandb")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment(directory.parent / "home")
    )
    return done.stdout


def records(directory, kind):
    lines = [json.loads(line) for line in wandb_json(directory).splitlines()]
    return [line[kind] for line in lines if line["type"] == kind]


def rows(directory):
    """The logged metrics, without what wandb adds."""
    return [
        {key: value for key, value in record["item"].items() if not key.startswith("_")}
        for record in records(directory, "history")
    ]


def exit_codes(directory):
    return [record["exit_code"] for record in records(directory, "exit")]


def can_trace():
    strace = shutil.which("strace")
    return strace is not None and subprocess.run([strace, "-f", "true"], capture_output=True).returncode == 0


SUMMARY = {
    "state": "finished",
    "reason": None,
    "settings": {"optimizer.learning_rate": 1e-3},
    "step": 20,
    "train_loss": 1.5,
    "test_loss": None,
    "corpus_digest": "0123",
}


@pytest.fixture(scope="module")
def offline(python, tmp_path_factory):
    """Three runs of one process: two at once, then one more."""
    folder = tmp_path_factory.mktemp("offline")
    script = f"""
t = time.perf_counter()
one, two = start("one", sys.argv[1] + "/one"), start("two", sys.argv[1] + "/two")
one.log(10, {{"train_loss": np.float32(2.5), "gradient_norm": float("inf")}})
two.log(10, {{"train_loss": 7}})
one.log(20, {{"train_loss": np.float64("nan")}})
one.log(20, {{"validation_loss": np.array(3.25)}})
one.log(15, {{"late": 1.0}})
one.finish({SUMMARY!r}, 0)
two.finish({{"state": "diverged"}}, 1)
three = start("three", sys.argv[1] + "/three")
three.log(0, {{"train_loss": 1.0}})
three.finish({{"state": "finished"}}, 0)
"""
    prefix = (
        ("strace", "-f", "--seccomp-bpf", "-e", "trace=connect", "-o", str(folder / "trace")) if can_trace() else ()
    )
    return folder, ended(python(script, folder, prefix))


def test_nothing_is_printed_and_nothing_is_left_in_the_current_folder(offline):
    folder, result = offline
    assert result == (0, "", "")
    assert list((folder / "cwd").iterdir()) == []
    assert [path.name for path in (folder / "run" / "one").iterdir()] == ["wandb"]


def test_offline_opens_no_connection_but_to_its_own_process(offline):
    folder, _ = offline
    if not (folder / "trace").exists():
        pytest.skip("strace is missing or may not trace: apt-get install strace")
    connections = [line for line in (folder / "trace").read_text().splitlines() if "connect(" in line]
    assert connections
    assert [line for line in connections if "AF_UNIX" not in line] == []


def test_metrics_are_at_their_steps_on_the_axis_step(offline):
    directory = offline[0] / "run" / "one"
    assert rows(directory) == [
        {"step": 10, "train_loss": 2.5, "gradient_norm": "Infinity"},
        {"step": 20, "train_loss": "NaN"},
        {"step": 20, "validation_loss": 3.25},
        {"step": 15, "late": 1},
    ]
    metrics = records(directory, "metric")
    assert [metric["step_metric"] for metric in metrics if metric.get("glob_name") == "*"] == ["step"]
    assert [metric["name"] for metric in metrics if "name" in metric] == ["step"]


def test_config_name_group_tags_and_summary_are_complete(offline):
    directory = offline[0] / "run" / "one"
    (run,) = records(directory, "run")
    config = run["config"]["update"]
    config.pop("_wandb")
    assert config == {
        "model": {"d_model": 128, "head_output": {"kind": "factorized", "rank": 4}},
        "optimizer": {"betas": [0.9, 0.95], "clip_norm": None, "learning_rate": 1e-3},
        "seed": 0,
    }
    assert (run["run_id"], run["display_name"]) == ("one", "W_M rank 4, seed one")
    assert (run["run_group"], run["job_type"], run["notes"]) == ("quickstart", "report", "wm sweep")
    assert (run["project"], run["entity"]) == ("project", "team")
    assert sorted(run["tags"]) == ["W_M rank 4", "x" * 64]
    (summary,) = [record["update"] for record in records(directory, "summary") if "state" in record["update"]]
    assert summary == SUMMARY
    seen = json.loads(wandb_json(directory, "--summary"))
    assert (seen["state"], seen["exit_code"]) == ("finished", 0)
    assert {key: seen["summary"].get(key) for key in SUMMARY} == SUMMARY


def test_runs_of_one_process_are_apart_and_keep_their_states(offline):
    root = offline[0] / "run"
    assert rows(root / "two") == [{"step": 10, "train_loss": 7}]
    assert rows(root / "three") == [{"step": 0, "train_loss": 1}]
    assert [exit_codes(root / name) for name in ("one", "two", "three")] == [[0], [1], [0]]


def test_a_killed_process_leaves_its_rows_readable_and_no_process_behind(python, tmp_path):
    script = """
tracker = start("killed", sys.argv[1])
for step in range(100):
    tracker.log(step, {"train_loss": step / 2})
print("ready", flush=True)
for _ in range(600):  # a signal just before one long sleep would wait for its end
    time.sleep(0.1)
"""
    process = python(script, tmp_path)
    assert process.stdout.readline() == "ready\n"
    last_row = b"49.5"  # its loss, as it stands in wandb's file, which is written once a second
    start = time.monotonic()
    while not any(last_row in path.read_bytes() for path in tmp_path.glob("run/wandb/*/*.wandb")):
        assert time.monotonic() - start < 30
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    start = time.monotonic()
    assert ended(process) == (-signal.SIGKILL, "", "")  # the pipes close only when wandb's process has ended too
    assert time.monotonic() - start < 20
    assert rows(tmp_path / "run") == [{"step": step, "train_loss": step / 2} for step in range(100)]


def test_an_interrupt_is_ours_and_an_exception_without_finish_is_a_failed_run(python, tmp_path):
    interrupted = python(
        """
tracker = start("interrupted", sys.argv[1])
tracker.log(1, {"train_loss": 1.0})
try:
    print("ready", flush=True)
    for _ in range(600):  # a signal just before one long sleep would wait for its end
        time.sleep(0.1)
except KeyboardInterrupt:
    tracker.finish({"state": "preempted"}, 75)
    sys.exit(75)
""",
        tmp_path / "interrupted",
    )
    crashed = python(
        """
tracker = start("crashed", sys.argv[1])
tracker.log(1, {"train_loss": 1.0})
while not list(Path(sys.argv[1]).glob("wandb/*/*.wandb")):
    time.sleep(0.1)
time.sleep(0.5)
raise ZeroDivisionError("ours")
""",
        tmp_path / "crashed",
    )
    assert interrupted.stdout.readline() == "ready\n"
    interrupted.send_signal(signal.SIGINT)
    assert ended(interrupted) == (75, "", "")
    code, out, err = ended(crashed)
    assert (code, out, err.count("Traceback"), err.count("ZeroDivisionError: ours")) == (1, "", 1, 1), err
    assert exit_codes(tmp_path / "interrupted" / "run") == [75]
    assert exit_codes(tmp_path / "crashed" / "run") == [1]
    assert rows(tmp_path / "crashed" / "run") == [{"step": 1, "train_loss": 1}]


def test_an_unreachable_server_stops_and_slows_nothing_and_the_run_is_recorded_offline(python, tmp_path):
    """`auto` finds the key in the netrc file and nobody answers."""
    script = """
said = []
tracker = start("alone", sys.argv[1], "auto", warn=said.append)
t = time.perf_counter()
for step in range(1000):
    tracker.log(step, {"train_loss": 1.0})
logged = time.perf_counter() - t
tracker.finish({"state": "finished"}, 0)
assert logged < 1.0, logged
assert time.perf_counter() - t < 10.0
(said,) = said
assert "cannot be reached" in said and "wandb sync" in said and sys.argv[1] in said, said
"""
    home = tmp_path / "case" / "home"
    home.mkdir(parents=True)
    (home / ".netrc").write_text(f"machine 127.0.0.1:9 login user password {'a' * 40}\n")
    (home / ".netrc").chmod(0o600)
    process = python(
        script, home.parent, env=environment(home, WANDB_BASE_URL="http://127.0.0.1:9", WANDB_HTTP_TIMEOUT="2")
    )
    assert ended(process) == (0, "", "")
    directory = home.parent / "run"
    assert [path.name.split("-")[0] for path in (directory / "wandb").iterdir() if path.name.endswith("-alone")] == [
        "offline"
    ]
    assert len(rows(directory)) == 1000


def test_online_without_a_key_does_not_ask_even_at_a_terminal(python, tmp_path):
    script = """
said = []
tracker = start("keyless", sys.argv[1], "online", warn=said.append)
tracker.finish({"state": "finished"}, 0)
assert len(said) == 1 and "wandb login" in said[0] and "offline" in said[0], said
"""
    master, slave = pty.openpty()
    process = python(script, tmp_path, stdin=slave, stdout=slave, stderr=slave)
    try:
        assert process.wait(timeout=30) == 0
        os.set_blocking(master, False)
        with pytest.raises(BlockingIOError):
            os.read(master, 1000)
    finally:
        os.close(slave)
        os.close(master)
    assert exit_codes(tmp_path / "run") == [0]


def test_a_folder_that_cannot_be_written_is_said_once_and_stops_nothing(python, tmp_path):
    (tmp_path / "run").write_text("a file stands where the folder should be")
    script = """
said = []
tracker = start("nowhere", sys.argv[1], warn=said.append)
tracker.log(1, {"train_loss": 1.0})
tracker.finish({"state": "finished"}, 0)
assert len(said) == 1 and "start failed" in said[0] and sys.argv[1] in said[0], said
"""
    assert ended(python(script, tmp_path)) == (0, "", "")


@pytest.mark.parametrize(("mode", "variable"), [("disabled", {}), ("auto", {"WANDB_MODE": "disabled"})])
def test_disabled_imports_no_wandb_and_writes_nothing(python, tmp_path, mode, variable):
    script = f"""
tracker = start("silent", sys.argv[1], {mode!r})
tracker.log(1, {{"train_loss": 1.0}})
tracker.finish({{"state": "finished"}}, 0)
assert "wandb" not in sys.modules
"""
    assert ended(python(script, tmp_path, env=environment(tmp_path / "home", **variable))) == (0, "", "")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("configured", ["online", "offline", "disabled"])
@pytest.mark.parametrize("variable", ["", "online", "offline", "disabled", "nonsense"])
def test_a_mode_in_the_config_goes_before_the_environment(configured, variable):
    assert requested_mode(configured, {"WANDB_MODE": variable}) == configured


@pytest.mark.parametrize(
    ("variable", "mode"),
    [("online", "online"), ("run", "online"), ("dryrun", "offline"), ("disabled", "disabled"), ("nonsense", "auto")],
)
def test_auto_follows_the_environment(variable, mode):
    assert requested_mode("auto", {"WANDB_MODE": variable}) == mode
    assert requested_mode("auto", {}) == "auto"


def test_a_disabled_tracker_takes_everything():
    identity = RunIdentity("id", "name", None, "report", (), "", {})
    tracker = make_tracker(WandbConfig(mode="disabled"), identity, Path("nowhere"))
    assert isinstance(tracker, NoTracker)
    tracker.log(0, {"loss": float("nan")})
    tracker.spectra(0, np.ones((1, 1, 1)))
    tracker.finish({"loss": None}, 0)


@pytest.mark.parametrize(("steps", "every"), [(300, 50), (1000, 1), (999, 10), (7, 10), (100, None), (41, 2)])
def test_few_evaluations_have_a_picture_and_the_ends_always_do(steps, every):
    training = TrainingConfig(steps=steps, evaluate_every=every)
    evaluations = [0, *range(every or steps, steps + 1, every or steps)]
    drawn = [step for step in evaluations if is_drawn(training, step)]
    assert drawn[0] == 0
    assert is_drawn(training, steps)
    assert min(len(evaluations), 10) <= len(drawn) <= 22


def test_a_picture_is_brightest_where_singular_values_are_largest():
    values = np.array([[[1.0, 1e-2, 0.0], [0.1, 1e-4, 1e-9]]])
    pixels = np.asarray(draw_spectra(values, 7).convert("L")).astype(int)
    cells = pixels[22 + 7 : 22 + 28 : 14, 62 + 12 : 62 + 72 : 24]
    assert cells[0, 0] > cells[1, 0] > cells[0, 1] > cells[0, 2]
    assert cells[0, 2] == cells[1, 1] == cells[1, 2]


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 5000), (80, 64, 128), (200, 2, 2)])
def test_a_picture_stays_small(shape):
    values = np.random.default_rng(0).uniform(size=shape)
    picture, nothing = draw_spectra(values, 10**6), draw_spectra(np.zeros(shape), 0)
    assert picture.size == nothing.size
    assert picture.width <= 620 and picture.height <= 860
    data = io.BytesIO()
    picture.save(data, "PNG")
    assert len(data.getvalue()) < 500_000

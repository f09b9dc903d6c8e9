"""W&B beside a run that is killed, or whose server is nowhere."""

import json
import subprocess
import sys
import time

from tests.faults.runs import compare, written
from wmresearch.training.run_directory import RunDirectory

OPTIMIZED = True


def records(path):
    """What lies in a run's folder for W&B, as wandb itself reads it."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path / "wandb")]
    read = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in read.splitlines()]


def test_after_a_kill_the_records_are_those_of_one_run_with_each_step_once(data, whole, nursery, tmp_path):
    path, file = tmp_path / "run", written(data | {"tracking": {"wandb": {"mode": "offline"}}}, tmp_path)
    killed = {"before": "log", "step": 14, "command": "kill -9 $PPID"}
    assert nursery.wm("train", file, "--dir", path, fault=killed) == -9
    assert nursery.wm("train", file, "--dir", path) == 0
    compare(whole, path, data)
    run = RunDirectory(path)
    identity = run.summary()["run_id"]
    (now,) = path.glob(f"wandb/offline-run-*-{identity}")
    (earlier,) = path.glob("wandb/earlier/*")
    assert earlier.name.endswith(identity) and earlier.name != now.name
    found = records(path)
    assert [record["run"]["run_id"] for record in found if record["type"] == "run"] == [identity]
    rows = [record["history"]["item"] for record in found if record["type"] == "history"]
    plain = [{key: value for key, value in row.items() if key[0] != "_"} for row in rows]
    assert [row for row in plain if "tokens_per_second" not in row] == run.metrics()
    assert [row for row in plain if "tokens_per_second" in row] == run.timing()
    assert [record["exit"]["exit_code"] for record in found if record["type"] == "exit"] == [0]


def test_a_server_that_is_nowhere_stops_and_slows_nothing(data, whole, nursery, tmp_path):
    file, output = written(data | {"tracking": {"wandb": {"mode": "online"}}}, tmp_path), tmp_path / "output"
    nowhere = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "a" * 40, "WANDB_HTTP_TIMEOUT": "2"}
    started = time.monotonic()
    assert nursery.wm("train", file, "--dir", tmp_path / "run", output=output, environment=nowhere) == 0
    assert time.monotonic() - started < 60
    compare(whole, tmp_path / "run", data)
    text = output.read_text()
    assert text.count("cannot be reached") == 1 and "wandb sync" in text and "Traceback" not in text
    assert "offline" in next(tmp_path.glob("run/wandb/*run-*")).name

"""The offline W&B record of a really run sweep, read back with wandb's own reader."""

import json
import shlex
import subprocess
import sys

import numpy as np
from PIL import Image

from tests.sweeps.mini import SEEDS
from wmresearch.config import load_run, run_id, yaml_text
from wmresearch.sweeps.store import read_plan
from wmresearch.training.run_directory import RunDirectory


def test_a_record_has_the_config_the_metrics_at_their_steps_and_the_summary(mini):
    planned = next(run for run in read_plan(mini / "runs")["runs"] if run["arm"] == "W_M rank 3")
    run = RunDirectory(mini / "runs" / planned["run_id"])
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(run.path / "wandb")]
    read = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    records = [json.loads(line) for line in read.splitlines()]

    (begun,) = [record["run"] for record in records if record["type"] == "run"]
    command = shlex.split(begun["notes"].removeprefix("Again: "))
    name = planned["run_id"]
    assert command == ["wm", "train", f"runs/{name}/config.yaml", "--dir", f"runs/{name}-again"]
    assert run_id(load_run(mini / command[2]), run.summary()["corpus_digest"]) == planned["run_id"]
    config = {key: value for key, value in begun["config"]["update"].items() if key != "_wandb"}
    assert config == yaml_text.read(run.path / "config.yaml") | {"arm": "W_M rank 3", "settings": {}}
    assert (begun["run_id"], begun["run_group"], begun["job_type"]) == (planned["run_id"], "mini", "report")
    assert begun["display_name"] == f"W_M rank 3 · seed {SEEDS[0]}"

    rows = [record["history"]["item"] for record in records if record["type"] == "history"]
    seen = [{key: value for key, value in row.items() if key[0] != "_"} for row in rows]
    others = "heads/", "spectra", "tokens_per_second"
    assert [row for row in seen if not any(key.startswith(others) for key in row)] == run.metrics()
    assert [row for row in seen if "tokens_per_second" in row] == run.timing()
    curves = [row for row in seen if "heads/effective_rank/layer0" in row]
    expected = [(line["step"], np.mean(line["effective_rank"][0], dtype=float)) for line in run.diagnostics()]
    assert [(row["step"], row["heads/effective_rank/layer0"]) for row in curves] == expected
    pictures = [row for row in seen if "spectra.path" in row]
    assert [row["step"] for row in pictures] == [line["step"] for line in run.diagnostics()]
    (folder,) = (run.path / "wandb").glob("offline-run-*")
    for row in pictures:
        with Image.open(folder / "files" / row["spectra.path"]) as image:
            assert image.size == (row["spectra.width"], row["spectra.height"])
    metrics = [record["metric"] for record in records if record["type"] == "metric"]
    assert {"step"} == {metric["step_metric"] for metric in metrics if metric.get("glob_name") == "*"}

    summaries = [record["summary"]["update"] for record in records if record["type"] == "summary"]
    assert run.summary() in summaries
    assert [record["exit"]["exit_code"] for record in records if record["type"] == "exit"] == [0]

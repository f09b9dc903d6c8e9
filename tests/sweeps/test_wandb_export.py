"""W&B sweeps made of ours: by W&B's own schema, and by the commands that W&B's own agent would run."""

import itertools
import json
import shlex
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import jsonschema
import pytest
import yaml
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

from tests.sweeps.mini import ARMS, wm, write_sweep
from wmresearch.config import load_run, run_id
from wmresearch.data import corpus_digest
from wmresearch.sweeps.plan import make_plan
from wmresearch.sweeps.wandb_export import wandb_sweeps

VARIED = ARMS | {
    "several": {
        "optimizer.clip_norm": None,
        "optimizer.betas": [0.8, 0.9],
        "model.bias": False,
        "penalties": [{"kind": "nuclear", "strength": 1e-3}],
    }
}
GRID = {
    "optimizer.learning_rate": [1e-5, 1e-2],
    "optimizer.skip_spikes": [None, {"factor": 10.0}],
    "model.dropout": [0.0],
}


@pytest.fixture(scope="module")
def schema():
    """It lies in a package whose code we do not use."""
    try:
        package = metadata.distribution("sweeps")
    except metadata.PackageNotFoundError:
        pytest.skip("W&B's schema is missing: pip install --no-deps sweeps")
    return json.loads(Path(package.locate_file("sweeps/config/schema.json")).read_text(encoding="utf-8"))


def commands(config):
    """What W&B's agent runs for each point of a grid, and under which name."""
    keys = config["parameters"]
    for point in itertools.product(*(parameter["values"] for parameter in keys.values())):
        given = {key: {"value": value} for key, value in zip(keys, point, strict=True)}
        made = create_sweep_command_args({"args": given}) | {"env": ["/usr/bin/env"]}
        words = [made[word[2:-1]] if word.startswith("${") else [word] for word in config["command"]]
        yield config["name"], list(itertools.chain(*words))


def exported(capfd, file, folder, *options):
    code, out, err = wm(capfd, "sweep", file, "--export", "wandb", "--dir", folder, *options)
    assert code == 0, err
    files = [shlex.split(line)[2] for line in out.splitlines() if line.startswith("wandb sweep ")]
    assert sorted(map(str, folder.glob("**/*"))) == sorted([*files, str(folder / "wandb_sweeps")])
    return [yaml.safe_load(Path(file).read_text(encoding="utf-8")) for file in files]


def test_agents_would_run_the_plans_runs_each_once(capfd, tmp_path, schema):
    file = write_sweep(tmp_path, arms=VARIED, grid=GRID, seeds=[3, 5])
    options = ["tracking.wandb.entity=team", "data.batch_size=2"]
    configs = exported(capfd, file, tmp_path / "out", *options)
    plan = make_plan(file, options)
    assert [config["name"] for config in configs] == [f"mini: {arm}" for arm in VARIED]
    found = []
    for config in configs:
        jsonschema.validate(config, schema, jsonschema.Draft7Validator)
        assert (config["entity"], config["project"], config["metric"]["name"]) == (
            "team",
            "wmresearch",
            "validation_loss",
        )
        for name, words in commands(config):
            assert words[:4] == ["/usr/bin/env", "WANDB_RUN_GROUP=mini", "wm", "train"]
            chosen = load_run(words[4], words[5:])
            assert chosen.tracking.wandb.entity == "team"
            found.append((name.removeprefix("mini: "), run_id(chosen, corpus_digest(chosen.data))))
    assert len(found) == len(VARIED) * 4 * 2
    assert sorted(found) == sorted((run.arm, run.run_id) for run in plan.runs)


def test_an_arm_whose_runs_are_no_grid_has_a_sweep_for_each_setting(tmp_path):
    whole = make_plan(write_sweep(tmp_path, grid=GRID, seeds=[3, 5]))
    plan = replace(whole, runs=whole.runs[1:])
    configs = wandb_sweeps(plan, load_run(tmp_path / "base.yaml"), str(tmp_path / "base.yaml"))
    assert [name.startswith("W_o ") for name in configs] == [True] * 4 + [False]
    made = [load_run(words[4], words[5:]) for config in configs.values() for _, words in commands(config)]
    found = [run_id(chosen, corpus_digest(chosen.data)) for chosen in made]
    assert sorted(found) == sorted(run.run_id for run in plan.runs)


def test_the_schema_refuses_what_is_no_sweep(schema):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"parameters": {}}, schema, jsonschema.Draft7Validator)


def test_nothing_but_the_files_is_written(capfd, tmp_path):
    file = write_sweep(tmp_path)
    exported(capfd, file, tmp_path / "out")
    assert wm(capfd, "sweep", file, "--export", "excel", "--dir", tmp_path / "out")[0] == 2

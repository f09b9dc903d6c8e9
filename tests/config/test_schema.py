"""The schemas say to editors what the loader says; every file under configs/ keeps to them."""

import functools
import json
import re
from pathlib import Path

import jsonschema
import pytest

from tests.config.examples import SWEEP, TINY
from wmresearch.config import RunConfig, load_run, load_sweep, yaml_text
from wmresearch.config.presets import find_config, presets
from wmresearch.config.schema import schemas

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
FILES = sorted(path for path in CONFIGS.rglob("*.yaml"))
NAMES = [str(path.relative_to(CONFIGS)) for path in FILES]
NEEDS_A_TEXT = {"nanogpt_cpu.yaml"}


@functools.cache
def validator(name):
    schema = schemas()[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", ["run.json", "sweep.json"])
def test_the_committed_schema_is_up_to_date(name):
    assert json.loads((CONFIGS / "schema" / name).read_text(encoding="utf-8")) == schemas()[name], "run `make schema`"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_config_file_names_its_schema_keeps_to_it_and_loads(path, tmp_path):
    first = path.read_text(encoding="utf-8").splitlines()[0]
    named = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", first)
    assert named, "the first line names the schema for editors"
    schema = (path.parent / named[1]).resolve()
    assert schema.parent == CONFIGS / "schema"
    validator(schema.name).validate(yaml_text.read(path))
    text = tmp_path / "input.txt"
    text.write_text("text", encoding="utf-8")
    overrides = [f"data.corpus.path={text}"] if path.name in NEEDS_A_TEXT else []
    (load_sweep if schema.name == "sweep.json" else load_run)(path, overrides)


@pytest.mark.parametrize(
    "change",
    [
        {"model": {**TINY["model"], "d_modl": 1}}, {"model": {**TINY["model"], "mlp": "gelo"}}, {"seed": -1},
        {"data": {**TINY["data"], "tokenizer": "bite"}}, {"optimizer": {"kind": "adamw"}}, {"training": None},
        {"data": {**TINY["data"], "corpus": "stdlib/smal"}},
    ],
)  # fmt: skip
def test_the_run_schema_accepts_and_refuses(change):
    assert validator("run.json").is_valid(TINY)
    assert not validator("run.json").is_valid(TINY | change)


@pytest.mark.parametrize(
    "change",
    [
        {"grid": {"model.head_output.settings.a": 1}}, {"arms": {"a": {"model.head_output.settings.a": {}}}},
        {"grid": {"optimizer.lerning_rate": [1]}}, {"grid": {"optimizer.learning_rate": [-1]}},
        {"grid": {"optimizer.learning_rate": []}}, {"grid": {}}, {"arms": {}}, {"arms": {"a": {"model.d_modl": 1}}},
        {"arms": {"a": {"model.head_output": {"kind": "shared_basis"}}}}, {"seeds": []}, {"seeds": [-1]},
    ],
)  # fmt: skip
def test_the_sweep_schema_accepts_and_refuses(change):
    assert validator("sweep.json").is_valid(SWEEP)
    assert not validator("sweep.json").is_valid(SWEEP | change)


def test_the_sweep_schema_knows_dotted_keys_of_each_depth_and_kind():
    arm = {
        "model": {"dropout": 0.1}, "model.head_output": "standard", "model.head_output.kind": "factorized",
        "model.head_output.rank": 3, "model.head_output.init": {"gauge": 10},
        "optimizer.schedule.warmup": 3, "optimizer": {"learning_rate": 1.0},
        "model.head_output.settings.rank": 8, "model.head_output.settings.names": ["a"], "model.head_output.bias": True,
        "data.corpus": "stdlib/small", "data.corpus.path": "a", "data.tokenizer": {"kind": "bpe"}, "seed": 1,
    }  # fmt: skip
    validator("sweep.json").validate(SWEEP | {"arms": {"a": arm}, "grid": {key: [value] for key, value in arm.items()}})


def test_presets_have_the_published_sizes():
    sizes = {
        "gpt2": (12, 768, 12, 12, 3072, 1024), "gpt2-medium": (24, 1024, 16, 16, 4096, 1024),
        "gpt2-large": (36, 1280, 20, 20, 5120, 1024), "gpt2-xl": (48, 1600, 25, 25, 6400, 1024),
        "llama3-8b": (32, 4096, 32, 8, 14336, 8192), "llama3-70b": (80, 8192, 64, 8, 28672, 8192),
    }  # fmt: skip
    for name, expected in sizes.items():
        model = load_run(name).model
        assert (
            model.n_layers,
            model.d_model,
            model.n_heads,
            model.kv_heads,
            model.mlp_width,
            model.context,
        ) == expected


def test_presets_are_found_by_name():
    assert find_config("nanogpt_cpu") == find_config("nanogpt-cpu") == CONFIGS / "baselines" / "nanogpt_cpu.yaml"
    assert find_config("nanogpt-cpu", sweeps=True) == CONFIGS / "sweeps" / "nanogpt_cpu.yaml"
    assert "quickstart" in presets(sweeps=True)
    assert not set(presets()) & {"quickstart"}
    assert isinstance(load_run("tiny"), RunConfig)

"""A run that is killed at any instant, any number of times, ends as one that was not: bit for bit.

KILLS of the environment says how often, 20 unless given.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.training.examples import TEXT, same, tiny
from wmresearch.config import parse_run
from wmresearch.data import load_corpus
from wmresearch.training.checkpoints import open_checkpoints
from wmresearch.training.program import make_program
from wmresearch.training.rank_cut import model_at
from wmresearch.training.run_directory import RunDirectory

OPTIMIZED = True
KILLS = int(os.environ.get("KILLS", "20"))
TIMING = ("tokens_per_second", "wall_seconds")
"""Keys of summary.json that say how long something took."""


def run_of(text, kind):
    """A run with everything that has a memory: dropout, cached gradients, or heads that lose directions twice."""
    data = tiny(text, steps=48)
    data["model"] |= {"dropout": 0.1, "n_heads": 4}
    data["training"] |= {"checkpoint_every": 8, "keep": 2, "evaluate_every": 16}
    data["tracking"] = {"wandb": {"mode": "disabled"}}
    if kind == "penalties":
        data["penalties"] = [{"kind": "nuclear", "target": {"value": 0.05}, "every": 5}]
        data["optimizer"]["skip_spikes"] = {}
    else:
        data["model"]["head_output"] = {
            "kind": "dynamic_rank", "rank": 4, "bucket": 1, "total_rank": 8, "fine_tune_steps": 12,
            "compact_at": [20], "method": "hard_concrete",
        }  # fmt: skip
    return data


class Nursery:
    """Trains runs in processes that can be killed."""

    def __init__(self):
        script = Path(__file__).with_name("nursery.py")
        root = str(Path(__file__).resolve().parents[2])
        environment = os.environ | {"PYTHONPATH": root}
        self._process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def train(self, config, path, kill_when=None):
        """The exit code of a run; `kill_when`, asked again and again, says at what instant it is killed."""
        self._process.stdin.write(json.dumps({"config": config, "path": str(path)}) + "\n")
        self._process.stdin.flush()
        pid, ended = json.loads(self._process.stdout.readline()), threading.Event()

        def watch():
            while not ended.wait(0.001):
                if kill_when():
                    os.kill(pid, signal.SIGKILL)
                    return

        if kill_when:
            threading.Thread(target=watch, daemon=True).start()
        answer = json.loads(self._process.stdout.readline())
        ended.set()
        assert answer["pid"] == pid
        return answer["code"]

    def close(self):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def nursery():
    started = Nursery()
    yield started
    started.close()


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def after(seconds):
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def while_saving(path):
    """As soon as a checkpoint is begun that was not there before."""
    before = set(path.glob("checkpoints/*tmp*"))
    return lambda: bool(set(path.glob("checkpoints/*tmp*")) - before)


def while_cutting(path):
    """As soon as heads have lost directions once more."""
    file = path / "ranks.jsonl"
    size = lambda: file.stat().st_size if file.exists() else 0
    before = size()
    return lambda: size() > before


@pytest.mark.parametrize("kind", ["penalties", "ranks"])
def test_a_run_that_is_killed_again_and_again_ends_as_one_that_was_not(kind, nursery, text, tmp_path):
    config, whole, path = run_of(text, kind), tmp_path / "whole", tmp_path / "killed"
    assert nursery.train(config, whole) == 0
    started = time.monotonic()
    assert nursery.train(config, tmp_path / "again") == 0
    took = time.monotonic() - started
    draw, kills, code = random.Random(kind), 0, -signal.SIGKILL
    ways = [while_saving, while_cutting] if kind == "ranks" else [while_saving]
    while kills < KILLS // 2:
        if code == 0:  # it was done before it was killed: another one
            path = tmp_path / f"killed{kills}"
        way = draw.choice([None, None, *ways])
        code = nursery.train(config, path, way(path) if way else after(draw.uniform(0, took)))
        assert code in (0, -signal.SIGKILL)
        kills += code != 0
        if code == 0:
            compare(whole, path, config)
    assert nursery.train(config, path) == 0
    compare(whole, path, config)


def last_state(path, config):
    """The newest checkpoint of a run, whose heads may have lost directions."""
    directory = RunDirectory(path)
    model = model_at(config.model, directory.ranks(), config.training.steps)
    vocabulary = load_corpus(config.data).tokenizer.vocab_size
    like = make_program(config.model_copy(update={"model": model}), vocabulary).state_like()
    with open_checkpoints(directory.checkpoints, 2) as checkpoints:
        return checkpoints.restore(like)


def compare(whole, path, config):
    """Everything that follows from config and step is equal."""
    parsed = parse_run(config, "test")
    assert same(*(last_state(folder, parsed) for folder in (whole, path)))
    for name in ("metrics.jsonl", "diagnostics.jsonl", "ranks.jsonl"):
        files = [folder / name for folder in (whole, path) if (folder / name).exists()]
        assert len(files) != 1
        assert len({file.read_bytes() for file in files}) <= 1, name
    one, other = (json.loads((folder / "summary.json").read_text(encoding="utf-8")) for folder in (whole, path))
    for key in TIMING:
        del one[key], other[key]
    assert one == other
    for file in (whole / "spectra").glob("*.npz"):
        both = (np.load(folder / "spectra" / file.name)["singular_values"] for folder in (whole, path))
        np.testing.assert_array_equal(*both)

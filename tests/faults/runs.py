"""Runs in processes that can be killed, and what they leave behind."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.training.examples import same, tiny
from wmresearch.config import parse_run, yaml_text
from wmresearch.data import load_corpus
from wmresearch.training.checkpoints import open_checkpoints
from wmresearch.training.program import make_program
from wmresearch.training.rank_cut import model_at
from wmresearch.training.run_directory import RunDirectory

TIMING = ("tokens_per_second", "wall_seconds")
"""Keys of summary.json that say how long something took."""


class Nursery:
    """Gives birth to processes of `wm`. They obey the modes of files, root's too where `setpriv` is there."""

    def __init__(self):
        script = Path(__file__).with_name("nursery.py")
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        obeying = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
        self.obeys = os.getuid() != 0 or shutil.which("setpriv") is not None
        command = [*(obeying if os.getuid() == 0 and self.obeys else []), sys.executable, str(script)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def wm(self, *argv, output=os.devnull, fault=None, environment=None, kill_when=None):
        """The exit code of `wm`; `kill_when`, asked again and again, says at what instant it is killed."""
        line = {"argv": [str(each) for each in argv], "output": str(output), "fault": fault}
        line |= {"environment": environment or {}}
        self._process.stdin.write(json.dumps(line) + "\n")
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


def run_of(text, kind):
    """A run with everything that has a memory: dropout, cached gradients, or heads that lose directions twice."""
    data = tiny(text, steps=48)
    data["model"] |= {"dropout": 0.1, "n_heads": 4}
    data["training"] |= {"checkpoint_every": 8, "keep": 2, "evaluate_every": 16}
    data["tracking"] = {"wandb": {"mode": "disabled"}}
    if kind == "penalties":
        data["penalties"] = [{"kind": "nuclear", "target": {"value": 0.05}, "every": 5}]
        data["optimizer"]["skip_spikes"] = {}
        data["training"]["diagnostics"] = False
    else:
        data["model"]["head_output"] = {
            "kind": "dynamic_rank", "rank": 4, "bucket": 1, "total_rank": 8, "fine_tune_steps": 12,
            "compact_at": [20], "method": "hard_concrete",
        }  # fmt: skip
    return data


def written(data, folder):
    """A run's config as a file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.yaml").write_text(yaml_text.write(data), encoding="utf-8")
    return folder / "run.yaml"


@dataclass(frozen=True)
class Kill:
    """What a process was at when it was killed."""

    phase: str
    step: int | None
    seconds: float


def killed_again_and_again(nursery, data, folder, kills, seed, tell=None):
    """Kills so many processes of a run, and compares each run that comes to its end with one that nobody killed.

    Returns the kills, and how many runs came to their end.
    """
    file, whole, path = written(data, folder), folder / "whole", folder / "killed"
    assert nursery.wm("train", file, "--dir", whole) == 0
    started = time.monotonic()
    assert nursery.wm("train", file, "--dir", folder / "again") == 0
    took = time.monotonic() - started
    compare(whole, folder / "again", data)
    draw, found, ended, code = random.Random(seed), [], 1, -signal.SIGKILL
    ways = [while_saving, while_cutting] if "head_output" in data["model"] else [while_saving]
    while len(found) < kills:
        if code == 0:  # it was done before it was killed: another one
            path = folder / f"killed{len(found)}"
        way, begun = draw.choice([None, None, *ways]), time.time()
        when = way(path) if way else after(draw.uniform(0, took))
        code = nursery.wm("train", file, "--dir", path, kill_when=when)
        assert code in (0, -signal.SIGKILL)
        if code == 0:
            compare(whole, path, data)
            ended += 1
        else:
            found.append(Kill(*phase(path, begun, way), time.time() - begun))
            if tell:
                tell(len(found), found[-1])
    assert nursery.wm("train", file, "--dir", path) == 0
    compare(whole, path, data)
    return found, ended


def phase(path, begun, way):
    """What a process that was begun at a time was at, as its files tell, and its step."""
    status = RunDirectory(path).status()
    if status is None or status["heartbeat"] < begun:
        return "start", None
    step = (RunDirectory(path).metrics() or [{"step": 0}])[-1]["step"]
    if any(half.stat().st_mtime >= begun for half in path.glob("checkpoints/*tmp*")):
        return "saving", step
    return "cutting" if way is while_cutting else status["message"], step


def after(seconds):
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def while_saving(path):
    """As soon as a checkpoint is begun that was not there before."""
    stale = set(path.glob("checkpoints/*tmp*"))

    def begun():
        now = set(path.glob("checkpoints/*tmp*"))
        stale.intersection_update(now)
        return bool(now - stale)

    return begun


def while_cutting(path):
    """As soon as heads have lost directions once more."""
    file = path / "ranks.jsonl"
    size = lambda: file.stat().st_size if file.exists() else 0
    before = size()
    return lambda: size() > before


def last_state(path, config):
    """The newest checkpoint of a run, whose heads may have lost directions."""
    directory = RunDirectory(path)
    model = model_at(config.model, directory.ranks(), config.training.steps)
    vocabulary = load_corpus(config.data).tokenizer.vocab_size
    like = make_program(config.model_copy(update={"model": model}), vocabulary).state_like()
    with open_checkpoints(directory.checkpoints) as checkpoints:
        return checkpoints.restore(like)


def compare(whole, path, data):
    """Everything that follows from config and step is equal."""
    config = parse_run(data, "test")
    assert same(*(last_state(folder, config) for folder in (whole, path)))
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

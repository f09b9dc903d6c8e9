"""The guides in docs/: every command line is run, in order, in a folder of the test's own; every YAML block is read.

`configs/` there is a copy of the repository's, its smallest model made smaller still and its corpus a small text. Lines
that only count are given in the repository itself, so what they print is what the guide shows.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import NamedTuple

import pytest
import typer.main

from tests.guides import PAGES, ROOT, blocks
from tests.head_output.own_kind import write_example
from tests.sweeps.mini import wm
from tests.training.examples import TEXT, metrics_bytes, saved_steps
from wmresearch.cli import app
from wmresearch.config import load_run, yaml_text
from wmresearch.training.run_directory import RunDirectory

GUIDES = ("sweeps", "resuming", "head_outputs", "sharding")
EIGHT = "--xla_force_host_platform_device_count=8"
SMALL = {"d_model": 32, "n_layers": 2, "n_heads": 4, "context": 16, "bias": False}


class Command(NamedTuple):
    line: str
    shown: list[str]
    """What the guide prints below it."""


def commands(guide):
    found = []
    for block in blocks(guide, "console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Command(line.removeprefix("$ "), []))
            else:
                found[-1].shown.append(line)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where a reader of all guides would be."""
    made = tmp_path_factory.mktemp("guides")
    shutil.copytree(ROOT / "configs", made / "configs")
    (made / "text.txt").write_text(TEXT, encoding="utf-8")
    for path in (made / "configs" / "base").glob("*.yaml"):
        data = yaml_text.read(path)
        data["data"]["corpus"] = {"kind": "text", "path": str(made / "text.txt")}
        data["tracking"] = {"wandb": {"mode": "disabled"}}
        data["training"] |= {"tasks": False, "diagnostics": False}
        if path.name == "tiny.yaml":
            data["model"], data["data"]["batch_size"] = SMALL, 4
            data["training"] |= {"steps": 120, "evaluate_every": 60}
        path.write_text(yaml_text.write(data), encoding="utf-8")
    data["model"] = SMALL | {"n_heads": 8}
    (made / "my.yaml").write_text(yaml_text.write(data), encoding="utf-8")
    write_example(made)
    return made


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("WANDB_MODE", "disabled")


class Reader:
    """Gives the command lines of a guide, one after another, as a shell would."""

    def __init__(self, capfd, monkeypatch):
        self.capfd, self.monkeypatch = capfd, monkeypatch
        self.environment = {
            **os.environ,
            "XLA_FLAGS": os.environ["XLA_FLAGS"].replace(EIGHT, ""),
            "PYTHONPATH": str(ROOT),
        }
        self.behind = []
        with socket.socket() as free:
            free.bind(("", 0))
            self.port = str(free.getsockname()[1])

    def give(self, command):
        """The exit code, standard output and standard error of a line."""
        words = shlex.split(command.line.replace(":8476", f":{self.port}"))
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            assert (name, value) == ("XLA_FLAGS", EIGHT) and EIGHT in os.environ[name], "as this process has it"
            self.environment[name] = value
            return 0, "", ""
        if words[0] == "unset":
            del self.environment[words[1]]
            return 0, "", ""
        assert words[0] == "wm"
        if words[-1] == "&":
            self.behind.append(self.process(words[1:-1]))
            return 0, "", ""
        if self.behind:
            return self.beside(words[1:])
        with self.monkeypatch.context() as patch:
            if words[1] == "count":
                patch.chdir(ROOT)
            if command.shown[:1] == ["^C"]:
                interrupt_soon()
            return wm(self.capfd, *words[1:])

    def process(self, words):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([sys.executable, "-m", "wmresearch.cli", *words], env=self.environment, **pipes)

    def beside(self, words):
        """The last of several processes; the others' output, before its own."""
        everyone = [*self.behind, self.process(words)]
        self.behind = []
        try:
            ended = [process.communicate(timeout=150) for process in everyone]
        finally:
            for process in everyone:
                process.kill()
        return max(process.returncode for process in everyone), *map("".join, zip(*ended, strict=True))


def interrupt_soon():
    """As if Ctrl-C were pressed once the run listens for it."""
    before = signal.getsignal(signal.SIGINT)

    def press():
        end = time.monotonic() + 60
        while signal.getsignal(signal.SIGINT) == before and time.monotonic() < end:
            time.sleep(0.005)
        if signal.getsignal(signal.SIGINT) != before:
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


@pytest.mark.parametrize("guide", GUIDES)
def test_every_command_line_does_what_it_says(guide, folder, capfd, monkeypatch):
    reader, said = Reader(capfd, monkeypatch), []
    shutil.rmtree(folder / "runs", ignore_errors=True)
    for command in commands(guide):
        code, out, err = reader.give(command)
        stopped = command.shown == ["^C"]
        assert code == (75 if stopped else 0), f"{command.line}\n{out}{err}"
        assert "Traceback" not in out + err
        if not stopped:
            appear(command.shown, out)
        said.append(out)
    assert said and not reader.behind
    CLAIMS[guide](folder / "runs", said)


def appear(shown, out):
    """The lines that a guide shows are printed, in their order; `…` stands for any others."""
    printed = iter(out.splitlines())
    for line in shown:
        assert line == "…" or line in printed, f"not printed, or not there: {line}"


def made(runs, *names):
    """The runs that a guide leaves, all finished."""
    assert sorted(path.name for path in runs.iterdir()) == sorted(names)
    assert {RunDirectory(runs / name).state() for name in names} == {"finished"}


def sweeps_guide(runs, said):
    assert said[0].endswith("\n9 runs in runs/quickstart\n") and "3 cohorts" in said[0]
    assert [path.name for path in runs.iterdir()] == ["short"], "a dry run leaves nothing"
    assert said[2].count("finished") == 3 and said[2].count("40/40") == 3
    assert "W_M rank 16" in said[3] and said[3].count(" 1/1 |") == 3
    assert "then" in said[4] and "report runs" in said[4] and "matched" in said[4]
    assert said[5].endswith("\n9 runs in runs/quickstart\n")


def resuming_guide(runs, said):
    made(runs, "first", "kept", "moved")
    assert said[0].startswith("preempted: runs/first\n") and "start again to go on" in said[0]
    assert saved_steps(runs / "first") == [100, 120]
    assert {100, 120} <= set(saved_steps(runs / "kept"))
    assert metrics_bytes(runs / "first") == metrics_bytes(runs / "kept"), "the bits of a run that was not stopped"
    assert "preempted" in said[5] and mesh_of(runs / "moved") == {"data": 4, "head": 1}


def head_outputs_guide(runs, said):
    made(runs, "found", "retrained", "held")
    found, again = (RunDirectory(runs / name) for name in ("found", "retrained"))
    ranks = found.ranks()[-1]["ranks"]
    assert sum(map(sum, ranks)) == 48
    assert yaml_text.read(runs / "retrained" / "config.yaml")["model"]["head_output"]["ranks"] == ranks
    assert again.summary()["parameters"] == found.summary()["parameters"]
    logged = [line for line in RunDirectory(runs / "held").metrics() if "penalty/frobenius" in line]
    assert {f"penalty/frobenius{what}" for what in ("_strength", "_added", "_share")} <= logged[0].keys()
    assert len({line["penalty/frobenius_strength"] for line in logged}) > 5, "it is steered"
    assert "50 runs in runs/every_kind" in said[2]


def sharding_guide(runs, said):
    made(runs, "divided", "moved", "both")
    assert mesh_of(runs / "divided") == {"data": 4, "head": 2}
    assert mesh_of(runs / "both") == {"data": 2, "head": 1}
    assert json.loads((runs / "both" / "manifest.json").read_text())["processes"] == 2
    losses = [RunDirectory(runs / name).summary()["validation_loss"] for name in ("divided", "moved", "both")]
    assert losses == pytest.approx(losses[:1] * 3, rel=1e-2)
    assert len({RunDirectory(runs / name).summary()["run_id"] for name in ("divided", "moved", "both")}) == 1


def mesh_of(run):
    return json.loads((run / "manifest.json").read_text(encoding="utf-8"))["mesh"]


CLAIMS = {
    "sweeps": sweeps_guide,
    "resuming": resuming_guide,
    "head_outputs": head_outputs_guide,
    "sharding": sharding_guide,
}


@pytest.mark.parametrize("guide", GUIDES)
def test_commands_are_right_for_the_configs_of_the_repository(guide, monkeypatch):
    """Which are larger than those that are run here."""
    monkeypatch.chdir(ROOT)
    for line in [command.line for command in commands(guide)]:
        words = shlex.split(line.removesuffix("&"))
        if words[:2] == ["wm", "train"]:
            given = parsed(words[1:])
            if "ranks_from" not in line:
                load_run(given["config"], given["overrides"])


def test_commands_within_a_sentence_are_understood():
    found = [span for guide in (*GUIDES, "wandb") for span in re.findall(r"`(wm [^`]+)`", PAGES[guide])]
    found = [shlex.split(span.replace("…", "")) for span in found]
    assert len(found) > 10
    for words in found:
        parsed(words[1:] if len(words) > 2 else [*words[1:], "X"])


def test_what_a_guide_says_of_a_cluster_is_understood():
    """Lines that no test can give: their options and configs are right."""
    lines = [line for guide in GUIDES for block in blocks(guide, "sh") for line in block.splitlines()]
    assert len(lines) == 5
    for line in lines:
        words = shlex.split(line, comments=True)
        given = parsed(words[words.index("wm") + 1 :])
        load_run(given["config"], given["overrides"])


def parsed(words):
    command = typer.main.get_command(app).commands[words[0]]
    return command.make_context(words[0], words[1:]).params


@pytest.mark.parametrize("guide", ["resuming", "head_outputs", "sharding"])
def test_every_yaml_block_is_a_part_of_a_config(guide):
    found = blocks(guide, "yaml")
    assert found
    for block in found:
        flat = {}
        for key, value in yaml_text.parse(block, guide).items():
            nested = isinstance(value, dict) and "." not in key
            flat |= {f"{key}.{name}": item for name, item in value.items()} if nested else {key: value}
        load_run(
            "gpt2" if guide == "head_outputs" else str(ROOT / "configs/base/tiny.yaml"),
            [f"{key}={json.dumps(value)}" for key, value in flat.items()],
        )


def test_every_yaml_block_of_the_sweeps_guide_is_a_part_of_a_sweep(folder, capfd):
    whole, *parts = (yaml_text.parse(block, "sweeps.md") for block in blocks("sweeps", "yaml"))
    assert len(parts) == 3
    for part in [{}, *parts]:
        sweep = {key: value for key, value in whole.items() if key != "grid" or "tune" not in part} | part
        file = folder / "configs" / "sweeps" / "mine.yaml"
        file.write_text(yaml_text.write(sweep), encoding="utf-8")
        code, out, err = wm(capfd, "sweep", file, "--dry-run")
        assert code == 0 and out.rstrip().endswith(" runs in runs/mine"), err


def test_the_python_of_the_sweeps_guide_runs():
    (code,) = blocks("sweeps", "python")
    names = {}
    exec(code, names)
    assert len(list(names["configs"])) == 4 * 2 * 2

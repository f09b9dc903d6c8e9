"""Each command line of docs/wandb.md, run in a folder with a sweep that was run."""

import fcntl
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.reports.wandb_server import environment, serving
from tests.sweeps.mini import twenty_runs

GUIDE = Path(__file__).parents[2] / "docs" / "wandb.md"
LINES = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    for line in block.splitlines()
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Beside the sweep file its runs, as if by `--dir runs/mine`."""
    made, whole = tmp_path_factory.mktemp("guide"), twenty_runs()
    for name in ("text.txt", "base.yaml", "sweep.yaml"):
        shutil.copy(whole / name, made / name)
    (made / "sweep.yaml").rename(made / "mine.yaml")
    shutil.copytree(whole / "runs", made / "runs" / "mine", symlinks=True)
    return made


def test_the_guide_has_commands_and_shows_a_picture_that_is_there():
    assert len(LINES) == 9
    picture = re.findall(r"!\[.*?\]\((.*?)\)", GUIDE.read_text(encoding="utf-8"))
    assert [(GUIDE.parent / name).exists() for name in picture] == [True]


def test_every_command_line_does_what_it_says(folder):
    own = folder / "bin"
    own.mkdir()
    for name, module in (("wm", "wmresearch.cli"), ("wandb", "wandb")):
        (own / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        (own / name).chmod(0o755)
    run = min(path.parent.name for path in (folder / "runs" / "mine").glob("*/summary.json"))
    with serving() as server:
        where = environment(
            PATH=f"{own}:{os.environ['PATH']}", HOME=str(folder), WANDB_BASE_URL=server.url, WANDB_API_KEY="a" * 40
        )
        said = {line: run_line(line.replace("RUN", run), folder, where) for line in LINES}
    assert (folder / "dashboard.json").stat().st_size > 10_000
    assert len(server.views) == 2
    assert said["wm sync runs/mine --dry-run"] == "20 recorded\n"
    assert said["wm sync runs/mine"] == "20 runs uploaded\n"
    assert said["wandb leet runs/all"].count("offline-run-") >= 2
    assert "validation_loss" in said["wandb leet inspect --summary runs/mine/RUN/wandb"]
    files = [shlex.split(line)[2] for line in said[LINES[-1]].splitlines() if line.startswith("wandb sweep")]
    assert len(files) == 4
    assert all((folder / file).exists() for file in files)


def run_line(line, folder, where):
    if line.startswith("wandb leet") and "inspect" not in line:
        return screen(line, folder, where)
    done = subprocess.run(line, shell=True, cwd=folder, env=where, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done.stdout


def screen(line, folder, where):
    """What a program writes to a terminal until it has shown two runs."""
    terminal, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    terminal_of = where | {"TERM": "xterm-256color"}
    process = subprocess.Popen(line, shell=True, cwd=folder, env=terminal_of, start_new_session=True, **streams)
    os.close(theirs)
    shown, end = "", time.monotonic() + 120
    try:
        while shown.count("offline-run-") < 2 and time.monotonic() < end:
            if select.select([terminal], [], [], 1.0)[0]:
                shown += os.read(terminal, 65536).decode(errors="replace")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(terminal)
    return shown

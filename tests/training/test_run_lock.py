"""One process holds a run's folder; a dead one, here or on another machine, holds nothing."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from wmresearch.training import run_lock
from wmresearch.training.run_lock import RunBusyError, hold

HOLDING = """
import sys, time
from pathlib import Path
from wmresearch.training.run_lock import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(run_lock, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(run_lock, "STALE_SECONDS", 1.0)


def of_another_machine(folder, age):
    holder = folder / ".holder"
    holder.write_text(json.dumps({"process": 7, "host": "far.away", "token": "x"}), encoding="utf-8")
    os.utime(holder, (time.time() - age,) * 2)
    return holder


def left(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_a_process_that_is_there_is_named_and_one_that_was_killed_is_forgotten(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDING, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunBusyError, match=f"process {other.pid} on"), hold(tmp_path):
            pass
        other.kill()
    started = time.monotonic()
    with hold(tmp_path):
        assert left(tmp_path) == [".holder"]
    assert time.monotonic() - started < 5
    assert left(tmp_path) == []


def test_a_silent_process_of_another_machine_is_waited_for_and_then_taken_for_dead(tmp_path, soon):
    of_another_machine(tmp_path, age=0.2)
    started = time.monotonic()
    with hold(tmp_path):
        assert 0.5 < time.monotonic() - started < 5
    assert left(tmp_path) == []
    of_another_machine(tmp_path, age=100)
    with hold(tmp_path):
        pass


def test_a_process_of_another_machine_that_renews_its_file_is_alive(tmp_path, soon):
    holder = of_another_machine(tmp_path, age=0.5)
    renewal = threading.Timer(0.2, lambda: os.utime(holder))
    renewal.start()
    with pytest.raises(RunBusyError, match=r"process 7 on far\.away"), hold(tmp_path):
        pass
    renewal.join()
    assert left(tmp_path) == [".holder"]


def test_whoever_lost_the_folder_is_told_and_leaves_it_to_the_other(tmp_path, soon):
    told = threading.Event()
    with hold(tmp_path, told.set):
        before = (tmp_path / ".holder").stat().st_mtime
        time.sleep(0.2)
        assert (tmp_path / ".holder").stat().st_mtime > before
        of_another_machine(tmp_path, age=0)
        assert told.wait(5)
    assert left(tmp_path) == [".holder"]


def test_half_a_file_is_nobodys(tmp_path):
    (tmp_path / ".holder").write_text('{"process": 7', encoding="utf-8")
    with hold(tmp_path):
        pass

"""Laws: a folder is there whole or not at all, is built once, and a killed builder leaves nothing in the way."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from wmresearch.config import ConfigError
from wmresearch.data import build_once, cache_folder

DIES_IN_THE_MIDDLE = """
import sys, time
from pathlib import Path
from wmresearch.data import build_once

def build(partial):
    (partial / "first").write_text("half")
    print("in the middle", flush=True)
    time.sleep(60)

build_once(Path(sys.argv[1]), build)
"""


def test_built_once_and_whole(tmp_path: Path) -> None:
    calls = []

    def build(partial: Path) -> None:
        calls.append(partial)
        assert not (tmp_path / "made").exists()
        (partial / "file").write_text("all")

    for _ in range(3):
        build_once(tmp_path / "made", build)
    assert len(calls) == 1
    assert (tmp_path / "made" / "file").read_text() == "all"
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == ["made"]


def test_a_failing_build_leaves_nothing(tmp_path: Path) -> None:
    def build(partial: Path) -> None:
        (partial / "file").write_text("half")
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        build_once(tmp_path / "made", build)
    assert [path for path in tmp_path.iterdir() if path.suffix != ".lock"] == []


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_process_is_waited_for_then_taken_over_from(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    process = subprocess.Popen([sys.executable, "-c", DIES_IN_THE_MIDDLE, str(folder)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"in the middle\n"
        waiting = threading.Event()

        def build(partial: Path) -> None:
            assert list(partial.iterdir()) == []
            (partial / "second").write_text("whole")

        thread = threading.Thread(target=build_once, args=(folder, build, lambda _: waiting.set()))
        thread.start()
        assert waiting.wait(20)  # told that another process is at it
        assert not folder.exists()
        process.send_signal(signal.SIGKILL)
        thread.join(20)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert [path.name for path in folder.iterdir()] == ["second"]
    assert not (tmp_path / ".made.partial").exists()


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WMRESEARCH_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("WMRESEARCH_CACHE")
    assert cache_folder() == tmp_path / "xdg" / "wmresearch"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path("~/.cache/wmresearch").expanduser()


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="set WMRESEARCH_CACHE to another folder"):
        build_once(tmp_path / "file" / "below" / "made", lambda _: None)

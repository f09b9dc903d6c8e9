"""A disk that is full, and a folder that cannot be written any more: said plainly, and nothing is lost."""

import re
import shlex
import subprocess

import pytest

from tests.faults.runs import compare, written
from tests.training.examples import saved_steps
from wmresearch.training.checksums import damage
from wmresearch.training.files import read_json

OPTIMIZED = "processes"
FULL = "No space left on device ("
CASES = [
    ("full", "log", FULL),
    ("full", "save", FULL),
    ("full", "end", FULL),
    ("read-only", "save", "Read-only file system"),
    ("closed", "log", "Permission denied"),
]


@pytest.fixture
def disk(tmp_path):
    """A file system of 2 MiB, with the folder of a run."""
    path = tmp_path / "disk"
    path.mkdir()
    mount("-t", "tmpfs", "-o", "size=2m", "tmpfs", path)
    (path / "run").mkdir()
    yield path
    subprocess.run(["umount", "-R", path], check=True)


def mount(*arguments):
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs to mount a file system, and may not: {done.stderr.strip()}")


def ways(disk):
    """Fault → the command that brings it about, and the one that mends it."""
    run, filler = shlex.quote(str(disk / "run")), shlex.quote(str(disk / "filler"))
    return {
        "full": (f"cat /dev/zero > {filler}", f"rm {filler}"),
        "read-only": (f"mount --bind {run} {run} && mount -o remount,bind,ro {run}", f"umount {run}"),
        "closed": (f"chmod -R a-w {run}", f"chmod -R u+w {run}"),
    }


@pytest.mark.parametrize(("fault", "before", "said"), CASES)
def test_a_run_stops_plainly_and_goes_on_when_it_can(fault, before, said, data, whole, nursery, disk, tmp_path):
    if fault == "closed" and not nursery.obeys:
        pytest.skip("root writes everywhere, and there is no setpriv: apt-get install util-linux")
    cause, cure = ways(disk)[fault]
    path, output = disk / "run", tmp_path / "output"
    request = ("train", written(data, tmp_path), "--dir", path)
    code = nursery.wm(*request, output=output, fault={"before": before, "step": 12, "command": cause})
    assert_plain(code, output.read_text(), said, path)
    left = saved_steps(path)
    assert left[-1] in {"log": (4, 8), "save": (8,), "end": (20,)}[before]
    for step in left:
        assert damage(path / "checkpoints" / str(step), sums(path, step)) is None
    code = nursery.wm(*request, output=output)
    assert_plain(code, output.read_text(), said, path)
    assert saved_steps(path) == left
    subprocess.run(cure, shell=True, check=True)
    assert nursery.wm(*request, output=output) == 0, output.read_text()
    compare(whole, path, data)


def sums(path, step):
    return read_json(path / "checkpoint_sums" / f"{step}.json")["files"]


def assert_plain(code, text, said, path):
    """What a user sees says which file, why, and what to do."""
    assert code == 1, text
    assert "Traceback" not in text and "Error" not in text, text
    (line,) = re.findall(rf"^wm: ({re.escape(str(path))}\S*: .*)$", text, re.MULTILINE)
    assert said in line, line
    assert re.search(r"^(Make room|Let this user write) there, then give the same command again", text, re.MULTILINE)


def test_a_new_run_on_a_full_disk_or_in_a_closed_folder(data, nursery, disk, tmp_path):
    output, file = tmp_path / "output", written(data, tmp_path)
    for fault, said in (("full", FULL), ("read-only", "Read-only file system")):
        cause, cure = ways(disk)[fault]
        subprocess.run(cause, shell=True, stderr=subprocess.DEVNULL)
        code = nursery.wm("train", file, "--dir", disk / "run" / "new", output=output)
        assert_plain(code, output.read_text(), said, disk / "run")
        subprocess.run(cure, shell=True, check=True)
    assert not list((disk / "run").rglob("*.json"))

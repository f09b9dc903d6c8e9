"""What was damaged while a run stood still is found, said and set aside; the run ends as if nothing had happened."""

import shutil

import pytest

from tests.training.examples import config, final_state, metrics_bytes, same, saved_steps
from wmresearch.training.interruption import StopRequest
from wmresearch.training.loop import train

OPTIMIZED = "processes"


@pytest.fixture(scope="module")
def chosen(text):
    return config(text, training__checkpoint_every=4, training__keep=3, training__log_every=2)


@pytest.fixture(scope="module")
def whole(chosen, tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    train(chosen, path)
    return path


@pytest.fixture(scope="module")
def stopped(chosen, tmp_path_factory):
    """A run with checkpoints 4, 8 and 12 that was told to stop."""
    path, stop = tmp_path_factory.mktemp("stopped") / "run", StopRequest()

    def report(progress):
        if progress.step >= 8:
            stop.signal = "SIGTERM"

    assert train(chosen, path, report=report, stop=stop)["state"] == "preempted"
    assert saved_steps(path) == [4, 8, 12]
    return path


def newest(path, largest=True):
    files = [file for file in (path / "checkpoints" / "12").rglob("*") if file.is_file()]
    return (max if largest else min)(files, key=lambda file: file.stat().st_size)


def flip_a_byte(path):
    file = newest(path)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def delete_half(path):
    files = sorted(file for file in (path / "checkpoints" / "12").rglob("*") if file.is_file())
    for file in files[::2]:
        file.unlink()


def cut_the_log(path):
    file = path / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-20])


def lose_power(path):
    """The last lines' length came to the disk, and not what stands in them."""
    file = path / "metrics.jsonl"
    data = file.read_bytes()
    file.write_bytes(data[:-60] + bytes(50) + data[-10:])


def cut_much_of_the_log(path):
    """Back to before step 8."""
    file = path / "metrics.jsonl"
    text = file.read_text(encoding="utf-8")
    file.write_text(text[: text.index('"step": 6') + 5], encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "aside", "said"),
    [
        (flip_a_byte, ["12"], "has changed since it was written"),
        (delete_half, ["12"], "No such file"),
        (cut_the_log, ["12"], "metrics.jsonl was cut off before it"),
        (lose_power, ["12"], "metrics.jsonl was cut off before it"),
        (cut_much_of_the_log, ["12", "8"], "metrics.jsonl was cut off before it"),
    ],
)
def test_a_run_goes_on_from_the_newest_checkpoint_that_is_whole(
    damage, aside, said, chosen, whole, stopped, tmp_path, caplog
):
    path = tmp_path / "run"
    shutil.copytree(stopped, path)
    damage(path)
    assert train(chosen, path)["state"] == "finished"
    assert sorted(folder.name for folder in (path / "damaged_checkpoints").iterdir()) == sorted(aside)
    assert said in caplog.text
    assert metrics_bytes(path) == metrics_bytes(whole)
    assert same(final_state(path, chosen), final_state(whole, chosen))


def test_there_is_no_checkpoint_without_sums(stopped):
    """They are written before its folder has its name, so a process killed at any instant leaves none without."""
    named, summed = ((stopped / name) for name in ("checkpoints", "checkpoint_sums"))
    for step in saved_steps(stopped):
        assert (summed / f"{step}.json").stat().st_mtime_ns <= (named / str(step)).stat().st_ctime_ns


def test_what_is_whole_is_left_alone(chosen, whole, stopped, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(stopped, path)
    train(chosen, path)
    assert not (path / "damaged_checkpoints").exists()
    assert metrics_bytes(path) == metrics_bytes(whole)
    summed = {int(file.stem) for file in (path / "checkpoint_sums").iterdir()}
    assert summed >= set(saved_steps(path)) and 4 not in summed

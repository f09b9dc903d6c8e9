"""Files are whole, and JSON is strict."""

import json

import pytest

from wmresearch.config import ConfigError
from wmresearch.training.files import json_line, read_json, write_atomically, write_json
from wmresearch.training.run_directory import RunDirectory
from wmresearch.training.run_lock import RunBusyError


def test_numbers_that_are_not_finite_become_null_everywhere(tmp_path):
    value = {"a": [1.5, float("nan"), {"b": float("inf")}], "c": (float("-inf"), None, "NaN", True)}
    expected = {"a": [1.5, None, {"b": None}], "c": [None, None, "NaN", True]}
    write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == expected
    assert json.loads(json_line(value), parse_constant=pytest.fail) == expected


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    write_atomically(tmp_path / "x", "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "x", "a lone surrogate \ud800")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "old"


def test_a_file_that_is_not_there_reads_as_none(tmp_path):
    (tmp_path / "file").touch()
    assert read_json(tmp_path / "no.json") is read_json(tmp_path / "file" / "no.json") is None


def test_a_line_that_was_cut_off_is_forgotten_and_a_rewind_cuts_what_came_later(tmp_path):
    directory = RunDirectory(tmp_path)
    assert directory.metrics() == []
    for step in (1, 2, 2, 3):
        directory.append_metrics(step, {"loss": step / 3})
    directory.append_timing(3, {"tokens_per_second": 1.0})
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 4, "lo')
    assert [line["step"] for line in directory.metrics()] == [1, 2, 2, 3]
    directory.rewind(2)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"".join(whole.splitlines(keepends=True)[:3])
    assert (tmp_path / "timing.jsonl").read_bytes() == b""


def test_a_directory_is_held_by_one_at_a_time(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    with directory.locked():
        directory.write_status("running")
        with pytest.raises(RunBusyError, match=r"process \d+ on .* is working on this run"), directory.locked():
            pass
    with directory.locked():
        pass


def test_a_folder_that_cannot_be_is_a_wrong_request(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ConfigError, match="a folder that can be made and written"), RunDirectory(path).locked():
            pass

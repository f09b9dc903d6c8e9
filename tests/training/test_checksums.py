"""Damage to a folder of files is found and named."""

import pytest

from wmresearch.training.checksums import damage, sums_of


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "data").write_bytes(bytes(range(256)) * 100)
    (tmp_path / "empty").touch()
    return tmp_path


def test_what_is_as_it_was_is_whole(folder):
    sums = sums_of(folder)
    assert sums.keys() == {"in/data", "empty"}
    assert damage(folder, sums) is None


def test_any_flipped_byte_and_any_missing_file_is_found(folder):
    sums, path = sums_of(folder), folder / "in" / "data"
    whole = path.read_bytes()
    for place in (0, 12345, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert "in/data has changed" in damage(folder, sums)
    path.write_bytes(whole[:-1])
    assert "in/data has changed" in damage(folder, sums)
    path.unlink()
    assert "in/data: No such file" in damage(folder, sums)

import pytest

from tests.faults.runs import Nursery, written
from tests.training.examples import TEXT, tiny


@pytest.fixture(scope="session")
def nursery():
    started = Nursery()
    yield started
    started.close()


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def data(text):
    """A short run with checkpoints at 4, 8, …, 20."""
    data = tiny(text)
    data["training"] |= {"checkpoint_every": 4, "log_every": 2, "evaluate_every": None, "diagnostics": False}
    return data


@pytest.fixture(scope="session")
def whole(data, nursery, tmp_path_factory):
    """The same, trained by a process that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    assert nursery.wm("train", written(data, folder), "--dir", folder / "run") == 0
    return folder / "run"

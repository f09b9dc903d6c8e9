import pytest

from tests.faults.runs import Nursery
from tests.training.examples import TEXT


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

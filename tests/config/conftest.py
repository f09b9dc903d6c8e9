import copy

import pytest

from tests.config.examples import SWEEP, TINY
from wmresearch.config import yaml_text


@pytest.fixture
def tiny():
    return copy.deepcopy(TINY)


@pytest.fixture
def sweep_data():
    return copy.deepcopy(SWEEP)


@pytest.fixture
def write(tmp_path):
    """Writes a value as YAML, or a text as it is, under a temporary folder."""

    def to(name, value):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else yaml_text.write(value), encoding="utf-8")
        return path

    return to


@pytest.fixture
def base(write, tiny):
    return write("base.yaml", tiny)

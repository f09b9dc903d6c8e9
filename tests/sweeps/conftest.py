import shutil

import pytest

from tests.sweeps.mini import mini_sweep, tuned_sweep


@pytest.fixture(scope="session")
def mini():
    """A sweep that was run; not to be changed."""
    return mini_sweep()


@pytest.fixture(scope="session")
def tuned():
    """A sweep that tunes and was run; not to be changed."""
    return tuned_sweep()


@pytest.fixture
def copied(mini, tmp_path):
    """A copy of it for a test to change: (sweep file, directory of the runs)."""
    shutil.copytree(mini, tmp_path / "mini")
    return tmp_path / "mini" / "sweep.yaml", tmp_path / "mini" / "runs"

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, so that nothing is found that an earlier test or the user prepared."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("WMRESEARCH_CACHE", str(folder))
    return folder

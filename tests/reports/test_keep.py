"""Tables that are kept: made again from what lies beside them, they are the same."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.sweeps.mini import mini_sweep
from wmresearch.reports.keep import keep_table
from wmresearch.reports.rendering import FORMATS
from wmresearch.reports.table import build_table, render

RESULTS = Path(__file__).resolve().parents[2] / "results"
KEPT = sorted(folder.parent for folder in RESULTS.glob("**/runs"))


@pytest.mark.parametrize("folder", KEPT, ids=[str(folder.relative_to(RESULTS)) for folder in KEPT])
def test_committed_tables_are_made_again_from_what_lies_beside_them(folder):
    table = build_table(folder / "runs")
    for form in FORMATS:
        assert (folder / f"table.{form}").read_text(encoding="utf-8") == render(table, form)
    assert json.loads((folder / "manifest.json").read_text()) == table.manifest


def test_what_results_say_they_were_made_from_is_committed():
    """A folder that git ignores is there for whoever made it, and for nobody else."""
    assert KEPT
    files = [file for folder in KEPT for file in (folder / "runs").rglob("*") if file.is_file()]
    asked = "\0".join(str(file.relative_to(RESULTS)) for file in files)
    answer = subprocess.run(
        ["git", "check-ignore", "-z", "--stdin"], cwd=RESULTS, input=asked, capture_output=True, text=True
    )
    assert answer.stdout == ""


def test_what_was_kept_makes_the_same_table(tmp_path):
    runs = mini_sweep() / "runs"
    for _ in range(2):  # the second time over the first
        keep_table(build_table(runs), runs, tmp_path / "kept")
    again = build_table(tmp_path / "kept" / "runs")
    keep_table(again, tmp_path / "kept" / "runs", tmp_path / "kept")
    for form in FORMATS:
        text = render(build_table(runs), form)
        assert render(again, form) == text == (tmp_path / "kept" / f"table.{form}").read_text(encoding="utf-8")

"""200 configs that are wrong somewhere, each given to the whole command."""

import contextlib
import io
import sys

import pytest
from hypothesis import HealthCheck, assume, given, settings

from tests.config.test_invalid import FULL, mutated
from wmresearch.cli import main
from wmresearch.config import ConfigError, load_run, yaml_text


def test_each_is_answered_by_what_is_wrong_where_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WMRESEARCH_CACHE", str(tmp_path / "cache"))
    seen = []

    @settings(max_examples=200, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
    @given(mutated(FULL))
    def ask(data):
        try:
            (tmp_path / "run.yaml").write_text(yaml_text.write(data), encoding="utf-8")
        except ValueError:
            assume(False)  # numbers and texts that no file can hold
        try:
            load_run(tmp_path / "run.yaml", [])
            assume(False)
        except ConfigError as error:
            problems = error.problems
        code, out, err = wm("train", "run.yaml", "--dir", "runs/new")
        assert (code, out) == (2, "")
        assert "Traceback" not in err
        for problem in problems:
            assert problem.path and problem.path in err
            assert problem.expected in err
        assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]
        seen.append(err)

    ask()
    assert len(seen) >= 200 and len(set(seen)) > 100


def wm(*arguments):
    """`wm` in this process: exit code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["wm", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    return ended.value.code, out.getvalue(), err.getvalue()

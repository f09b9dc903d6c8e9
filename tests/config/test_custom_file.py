"""The Python file of a head output of the user's own, as the config room sees it: a path and a content, never run."""

import hashlib
import json

import pytest

from tests.config.examples import SWEEP, has, problems_of
from wmresearch.config import ConfigError, load_run, load_sweep, parse_run, run_id, yaml_text
from wmresearch.config.custom_file import read_code

CODE = "raise SystemExit('a config is read without running this')\n"


@pytest.fixture(autouse=True)
def places(write, tmp_path, monkeypatch):
    write("configs/kinds/my_kind.py", CODE)
    write("here/my_kind.py", CODE)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def load(write, tiny):
    """The config of a file under configs/ with a custom head output, with overrides on top."""

    def loaded(chosen, *overrides):
        tiny["model"]["head_output"] = {"kind": "custom", **chosen}
        return load_run(write("configs/a.yaml", tiny), overrides)

    return loaded


@pytest.mark.parametrize("text", ["kinds/my_kind.py", "./kinds/../kinds/my_kind.py", "~/configs/kinds/my_kind.py"])
def test_a_path_starts_at_the_file_that_gives_it(load, tmp_path, text):
    found = load({"file": text}).model.head_output
    assert found.file == str(tmp_path / "configs/kinds/my_kind.py")
    assert found.sha256 == hashlib.sha256(CODE.encode()).hexdigest()


def test_a_path_on_the_command_line_starts_here(load, tmp_path):
    for override in ("model.head_output.file=my_kind.py", "model.head_output={kind: custom, file: my_kind.py}"):
        assert load({"file": "nothing.py"}, override).model.head_output.file == str(tmp_path / "here/my_kind.py")


def test_a_path_in_an_arm_starts_at_the_sweep_and_in_the_base_at_the_base(write, tiny, tmp_path):
    tiny["model"]["head_output"] = {"kind": "custom", "file": "kinds/my_kind.py", "settings": {"a": 1}}
    write("configs/base.yaml", tiny)
    write("sweeps/its_own.py", "")
    arms = {"base": {}, "own": {"model.head_output.file": "its_own.py"}}
    grid = {"model.head_output.settings.rank": [4, 8]}
    sweep = SWEEP | {"base": "../configs/base.yaml", "arms": arms, "baseline": "base", "grid": grid, "seeds": [0]}
    _, runs = load_sweep(write("sweeps/sweep.yaml", sweep))
    expected = {"base": "configs/kinds/my_kind.py", "own": "sweeps/its_own.py"}
    for run in runs:
        found = run.config.model.head_output
        assert found.file == str(tmp_path / expected[run.arm])
        assert found.settings == {"a": 1, "rank": run.settings["model.head_output.settings.rank"]}
    assert len({run_id(run.config, "digest") for run in runs}) == 4


@pytest.mark.parametrize("text", ["kinds/my_kid.py", "a\0b", "x" * 5000, "no/such/folder/my_kind.py", "~nobody/x"])
def test_nothing_there(load, tmp_path, text):
    ((source, path, _, said),) = problems_of(load, {"file": text})
    assert (source, path) == (str(tmp_path / "configs/a.yaml"), "model.head_output.file")
    assert "the path of a Python file; looked at" in said
    assert text != "kinds/my_kid.py" or said.endswith("did you mean 'my_kind.py'?")


def test_a_folder_is_no_file_and_all_is_told_at_once(load):
    problems = problems_of(load, {"file": "kinds"}, "training.steps=0", "model.d_modl=1")
    assert has(problems, "model.head_output.file", "kinds", "the path of a Python file", "directory")
    assert {path for _, path, _, _ in problems} == {"model.head_output.file", "training.steps", "model.d_modl"}


def test_the_content_makes_the_run_and_not_the_place(load, write):
    one = load({"file": "kinds/my_kind.py", "settings": {"rank": 8}})
    other_place = load({"file": "../here/my_kind.py", "settings": {"rank": 8}})
    other_settings = load({"file": "kinds/my_kind.py", "settings": {"rank": 9}})
    other_order = load({"file": "kinds/my_kind.py", "settings": {"rank": 8}, "order": "mix_first"})
    write("configs/kinds/my_kind.py", CODE + "\n")
    edited = load({"file": "kinds/my_kind.py", "settings": {"rank": 8}})
    ids = [run_id(config, "digest") for config in (one, other_place, other_settings, other_order, edited)]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 4


def test_a_config_that_was_written_keeps_the_absolute_path_and_its_id(load, write, tmp_path):
    config = load({"file": "kinds/my_kind.py", "settings": {"rank": 8, "gain": 0.5, "names": ["a", "b"], "x": None}})
    text = yaml_text.write(config.model_dump(mode="json"))
    write("configs/kinds/my_kind.py", CODE + "\n")  # what was written speaks of the content that was there
    again = parse_run(yaml_text.parse(text, "x"), "x")
    assert again == config
    assert again.model.head_output.file == str(tmp_path / "configs/kinds/my_kind.py")
    assert run_id(again, "digest") == run_id(config, "digest")


def test_plain_data_without_a_hash_gets_it(tiny, tmp_path):
    tiny["model"]["head_output"] = {"kind": "custom", "file": "my_kind.py"}
    found = parse_run(tiny, "x").model.head_output
    assert (found.file, len(found.sha256)) == (str(tmp_path / "here/my_kind.py"), 64)
    tiny["model"]["head_output"]["file"] = "nothing.py"
    assert has(problems_of(parse_run, tiny, "x"), "model.head_output.file", "nothing.py", "the path of a Python file")


def test_a_hash_that_is_given_must_be_the_files(load):
    right = hashlib.sha256(CODE.encode()).hexdigest()
    assert load({"file": "kinds/my_kind.py", "sha256": right}).model.head_output.sha256 == right
    wrong = "a" * 64
    problems = problems_of(load, {"file": "kinds/my_kind.py", "sha256": wrong})
    assert len(problems) == 1 and has(problems, "model.head_output.sha256", wrong, right, "the file has changed")
    problems = problems_of(load, {"file": "kinds/my_kind.py", "sha256": "abc"})
    assert len(problems) == 1 and has(problems, "model.head_output.sha256", "abc", "64 hexadecimal digits")


def test_the_code_that_is_read_is_the_code_that_was_hashed(load, write, tmp_path):
    chosen = load({"file": "kinds/my_kind.py"}).model.head_output
    assert read_code(chosen) == CODE.encode()
    write("configs/kinds/my_kind.py", CODE + "\n")
    with pytest.raises(ConfigError, match="has changed since"):
        read_code(chosen)
    (tmp_path / "configs/kinds/my_kind.py").unlink()
    with pytest.raises(ConfigError, match="No such file"):
        read_code(chosen)


@pytest.mark.parametrize("value", ["[1, [2]]", ".nan", "[.inf]", "{a: 1}"])
def test_settings_are_plain(load, value):
    problems = problems_of(load, {"file": "kinds/my_kind.py"}, f"model.head_output.settings={{a: {value}, b: 1}}")
    assert [path for _, path, _, _ in problems] == ["model.head_output.settings.a"]
    assert "a number, text, true, false or null, or a list of these" in problems[0][3]


def test_the_one_that_may_run_the_file_is_asked_once_a_config_stands(tiny, write):
    """And says its problems beside all others, at the places that the config's files give them."""
    tiny["model"]["head_output"] = {"kind": "custom", "file": "kinds/my_kind.py", "settings": {"rank": 8}}
    path, asked = write("configs/a.yaml", tiny), []

    def ask(config, place):
        from wmresearch.config import Problem

        asked.append(json.loads(config.model_dump_json())["model"]["head_output"]["settings"])
        return [Problem(*place("model.head_output.settings.rank"), "8", "nine")]

    problems = problems_of(load_run, path, ["training.steps=0", "model.head_output.settings.rank=7"], ask)
    assert asked == [{"rank": 7}]
    assert [(source, path) for source, path, _, _ in problems] == [
        ("command line", "training.steps"), ("command line", "model.head_output.settings.rank"),
    ]  # fmt: skip
    problems_of(load_run, path, ["model.d_model=x"], ask)
    problems_of(load_run, path, ["model.head_output=dense"], ask)
    assert len(asked) == 1

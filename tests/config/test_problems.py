"""What a wrong run config is told: everything at once, each with place, value, expectation and nearest name."""

import pytest

from tests.config.examples import has, problems_of
from wmresearch.config import ConfigError, Problem, load_run, parse_run
from wmresearch.config.problems import nearest


@pytest.fixture
def told(base):
    """The problems of the base config with overrides."""
    return lambda *overrides: problems_of(load_run, base, overrides)


@pytest.mark.parametrize(
    ("override", "path", "value", "expected"),
    [
        ("model.d_modl=3", "model.d_modl", "3", "a key that is known here; did you mean 'd_model'?"),
        ("optimiser.learning_rate=1", "optimiser", '{"learning_rate": 1}', "did you mean 'optimizer'?"),
        ("tracking.wandb.mod=x", "tracking.wandb.mod", "x", "did you mean 'mode'?"),
        ("model.head_output={kind: factorized, rank: 2, rnk: 3}", "model.head_output.rnk", "3", "did you mean 'rank'?"),
        ("model.mlp=gelo", "model.mlp", "gelo", "one of gelu, gelu_tanh, relu, swiglu; did you mean 'gelu'?"),
        ("model.mlp=GELU", "model.mlp", "GELU", "did you mean 'gelu'?"),
        ("model.mlp=3", "model.mlp", "3", "one of gelu, gelu_tanh, relu, swiglu"),
        ("model.head_output.kind=factorised", "model.head_output.kind", "factorised", "did you mean 'factorized'?"),
        ("model.head_output=factorised", "model.head_output", "factorised", "did you mean 'factorized'?"),
        ("model.head_output={rank: 3}", "model.head_output", '{"rank": 3}', "one of standard, factorized"),
        ("model.head_output=[1]", "model.head_output", "[1]", "custom: a name, or a mapping"),
        ("model.head_output=custom", "model.head_output", "custom", "text that is not empty: this key is required"),
        ("model.head_output.kind=7", "model.head_output.kind", "7", "one of standard, factorized"),
        ("model.head_output=factorized", "model.head_output", "factorized", "a rank, or `ranks` for each"),
        ("model.head_output={kind: factorized}", "model.head_output.rank", "", "a rank, or `ranks` for each"),
        ("data.corpus=stdlib/smal", "data.corpus", "stdlib/smal", "did you mean 'stdlib/small'?"),
        ("data.tokenizer=bite", "data.tokenizer", "bite", "did you mean 'byte'?"),
        ("data.tokenizer={kind: bpe, vocab_size: 10}", "data.tokenizer.vocab_size", "10", "number of at least 256"),
        ("data.split=[0.9, 0.2]", "data.split", "[0.9, 0.2]", "two or three positive shares that sum to 1"),
        ("data.split=0.9", "data.split", "0.9", "a list"),
        ("data.split=[a, 0.1]", "data.split.0", "a", "a number"),
        ("data.batch_size=null", "data.batch_size", "null", "a whole number of at least 1"),
        ("data.batch_size=1.5", "data.batch_size", "1.5", "a whole number of at least 1"),
        ("data.batch_size='8'", "data.batch_size", '"8"', "a whole number of at least 1"),
        ("data.batch_size=true", "data.batch_size", "true", "a whole number of at least 1"),
        ("data=3", "data", "3", "a mapping of keys to values"),
        ("optimizer.kind=adam", "optimizer.kind", "adam", "one of adamw, muon; did you mean 'adamw'?"),
        ("optimizer.learning_rate=-1", "optimizer.learning_rate", "-1", "a number above 0"),
        ("optimizer.learning_rate=.nan", "optimizer.learning_rate", ".nan", "a finite number above 0"),
        ("optimizer.learning_rate=-.inf", "optimizer.learning_rate", "-.inf", "a finite number above 0"),
        ("optimizer.betas=[0.9]", "optimizer.betas", "[0.9]", "a list of 2 entries"),
        ("optimizer.betas=[0.9, 1]", "optimizer.betas", "[0.9, 1]", "two numbers from 0 up to"),
        ("optimizer.clip_norm=0", "optimizer.clip_norm", "0", "a number above 0, or null"),
        ("optimizer.schedule.warmup=301", "optimizer.schedule.warmup", "301", "at most training.steps = 300"),
        ("model.dropout=1", "model.dropout", "1", "a number of at least 0 and below 1"),
        ("model.bias=no", "model.bias", "no", "true or false"),
        ("model.n_kv_heads=3", "model.n_kv_heads", "3", "a divisor of n_heads = 4: 1, 2, 4"),
        ("model.n_heads=7", "model.d_model", "128", "a multiple of n_heads = 7"),
        ("model.head_output={kind: factorized, rank: 129}", "model.head_output.rank", "129", "1 to d_model = 128"),
        ("model.positions={kind: rope, theta: 0}", "model.positions.theta", "0", "a number above 0"),
        ("seed=-1", "seed", "-1", "of at least 0 and below 4,294,967,296"),
        ("parallel.mesh={dta: 1}", "parallel.mesh.dta", "1", "did you mean 'data'?"),
        ("parallel.mesh={data: 5}", "parallel.mesh.data", "5", "a divisor of data.batch_size = 16: 1, 2, 4, 8, 16"),
        ("parallel.mesh={head: 8}", "parallel.mesh.head", "8", "at most model.n_heads = 4"),
        ("parallel.mesh={head: two}", "parallel.mesh.head", "two", "a whole number of at least 1, or auto"),
        ("parallel.mesh={run: 2, data: 4}", "parallel.mesh.run", "2", "one device each"),
        ("execution.accumulate=3", "execution.accumulate", "3", "a divisor of data.batch_size = 16: 1, 2, 4, 8, 16"),
        ("penalties=[{kind: nuclear}]", "penalties.0.strength", "", "a number of at least 0, or a target"),
        ("penalties=[{kind: nuklear, strength: 1}]", "penalties.0.kind", "nuklear", "did you mean 'nuclear'?"),
        ("penalties=[{kind: nuclear, strength: -1}]", "penalties.0.strength", "-1", "at least 0"),
        (
            "penalties=[{kind: nuclear, strength: 1}, {kind: nuclear, strength: 2}]",
            "penalties.1.kind", "nuclear", "each kind of penalty once",
        ),
        (
            "penalties=[{kind: group_lasso, strength: 1, groups: blocks, block: 5}]",
            "penalties.0.block", "5", "a divisor of model.d_model",
        ),
        ("penalties=[{kind: group_lasso, strength: 1, block: 4}]", "penalties.0.block", "4", "groups is blocks"),
        ("seed=" + "9" * 400, "seed", "9" * 77 + "...", "below 4,294,967,296"),
    ],
)  # fmt: skip
def test_one_wrong_entry_is_told_alone(told, override, path, value, expected):
    problems = told(override)
    assert has(problems, path, value, expected), problems
    assert len(problems) == 1
    wanted = "command line" if not override.startswith("model.n_heads") else "base.yaml"
    assert problems[0][0].endswith(wanted)


def test_all_wrong_entries_are_told_at_once(told):
    problems = told(
        "model.n_heads=7", "model.head_output={kind: factorised}", "model.d_modl=1", "optimizer.learning_rate=abc",
        "training.steps=0", "data.split=[1, 1]", "data.corpus={kind: text, path: nope.txt}", "foo", "bar=[", "baz=1",
    )  # fmt: skip
    expected = {"model.d_model", "model.head_output.kind", "model.d_modl", "optimizer.learning_rate", "training.steps",
                "data.split", "data.corpus.path", "", "bar", "baz"}  # fmt: skip
    assert {path for _, path, _, _ in problems} == expected
    assert len(problems) == 10


def test_a_missing_key_hides_only_what_depends_on_it(write, tiny):
    del tiny["model"]["d_model"]
    tiny["model"] |= {"n_kv_heads": 3, "head_output": {"kind": "factorized", "rank": 1000}}
    del tiny["training"]
    tiny["optimizer"]["betas"] = [2, 2]
    problems = problems_of(load_run, write("a.yaml", tiny))
    assert [p[1] for p in problems] == ["model.d_model", "training", "model.n_kv_heads", "optimizer.betas"]
    assert "a whole number of at least 1: this key is required (Width of the residual stream, d)" in problems[0][3]


def test_an_empty_mapping_misses_everything(tmp_path):
    assert [p[1] for p in problems_of(parse_run, {}, "x")] == ["model", "data", "optimizer", "training"]


@pytest.mark.parametrize(
    ("text", "value", "words"),
    [("", "", "empty"), ("# only this", "", "empty"), ("[1, 2]", "[1, 2]", "a mapping"), ("3", "3", "a mapping"),
     ("text", "text", "a mapping"), ("null", "", "empty")],
)  # fmt: skip
def test_a_file_that_is_no_mapping(write, text, value, words):
    path = write("a.yaml", text)
    ((source, where, found, said),) = problems_of(load_run, path)
    assert (source, where, found) == (str(path), "", value)
    assert words in said


@pytest.mark.parametrize("data", [None, 3, "x", [1], {}, {"model": None}, {"model": {"d_model": float("nan")}}])
def test_data_of_a_run_directory_that_is_no_config(data):
    assert all(source == "x" for source, *_ in problems_of(parse_run, data, "x"))
    assert problems_of(parse_run, data, "x")


def test_files_that_are_not_there(tmp_path, base, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cases = {
        "bas.yaml": "did you mean 'base.yaml'?",
        str(tmp_path / "base.yml"): "did you mean 'base.yaml'?",
        "no/base.yaml": "there is no folder no",
        "lama3-8b": "did you mean 'llama3-8b'?",
        "zzz": "valid names: comparison",
        ".": "this is a folder",
        "": "",
        "a\0b": "valid names",
        "x" * 5000 + ".yaml": "",
        "~nobody/x.yaml": "there is no folder",
    }
    for name, words in cases.items():
        ((source, path, value, said),) = problems_of(load_run, name)
        assert (source, path, value) == (name, "", "")
        assert words in said, (name, said)
        assert "a config file, or the name of one" in said


def test_a_sweep_is_no_run_config(write, sweep_data):
    ((_, _, _, said),) = problems_of(load_run, write("sweep.yaml", sweep_data))
    assert "this is a sweep; try `wm sweep`" in said


def test_divisors_of_huge_widths_are_sought_in_no_time(told):
    assert has(
        told(f"model.d_model={10**400 + 1}"), "model.d_model", "1" + "0" * 76 + "...", "a multiple of n_heads = 4"
    )


def test_a_problem_reads_well_and_can_always_be_printed():
    problem = Problem("a.yaml", "model.mlp", "gelo\udcff", "one of gelu, relu", "did you mean 'gelu'?")
    text = str(problem)
    assert text == "a.yaml: model.mlp = gelo\\udcff\n    expected one of gelu, relu\n    did you mean 'gelu'?"
    assert str(ConfigError([problem, problem])) == text


def test_nearest_name():
    assert nearest("learning-rate", ["learning_rate", "betas"]) == "did you mean 'learning_rate'?"
    assert nearest("zzz", ["a", "b"]) == "valid names: a, b"
    assert nearest("zzz", []) == ""

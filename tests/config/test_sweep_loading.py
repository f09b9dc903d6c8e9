"""From a sweep file to runs, or to everything that is wrong with file, base, arms, grid and overrides."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.config.examples import SWEEP, TINY, has, problems_of
from wmresearch.config import load_run, load_sweep, run_id, yaml_text

LEARNING_RATES = st.lists(st.floats(1e-5, 1), min_size=1, max_size=3, unique=True)
ARM_NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
RANKS = st.dictionaries(ARM_NAMES, st.integers(1, 128), min_size=1, max_size=4)


@pytest.fixture
def told(base, write, sweep_data):
    def problems(*overrides, **changes):
        return problems_of(load_sweep, write("sweep.yaml", sweep_data | changes), overrides)

    return problems


@given(
    RANKS,
    LEARNING_RATES,
    st.none() | st.permutations([16, 32, 64]),
    st.lists(st.integers(0, 99), min_size=1, unique=True),
)
def test_runs_are_arms_by_grid_by_seeds(tmp_path_factory, ranks, rates, contexts, seeds):
    folder = tmp_path_factory.mktemp("sweep")
    grid = {"optimizer.learning_rate": rates} | ({"model.context": contexts} if contexts else {})
    arms = {arm: {"model.head_output": {"kind": "factorized", "rank": rank}} for arm, rank in ranks.items()}
    sweep = SWEEP | {"arms": arms, "grid": grid, "seeds": seeds, "baseline": next(iter(arms))}
    (folder / "base.yaml").write_text(yaml_text.write(TINY), encoding="utf-8")
    (folder / "sweep.yaml").write_text(yaml_text.write(sweep), encoding="utf-8")
    base = load_run(folder / "base.yaml")
    _, runs = load_sweep(folder / "sweep.yaml")

    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    assert [(run.arm, run.settings, run.seed) for run in runs] == [*itertools.product(arms, points, seeds)]
    for run in runs:
        model = base.model.model_copy(
            update={
                "head_output": run.config.model.head_output,
                "context": run.settings.get("model.context", base.model.context),
            }
        )
        optimizer = base.optimizer.model_copy(update={"learning_rate": run.settings["optimizer.learning_rate"]})
        assert run.config.model.head_output.rank == ranks[run.arm]
        assert run.config == base.model_copy(update={"model": model, "optimizer": optimizer, "seed": run.seed})
    ids = {run_id(run.config, "digest") for run in runs}
    assert len(ids) == len(set(ranks.values())) * len(points) * len(seeds)


def test_a_sweep_without_a_grid(told, base, write, sweep_data):
    del sweep_data["grid"]
    _, runs = load_sweep(write("sweep.yaml", sweep_data))
    assert [(run.arm, run.settings, run.seed) for run in runs] == [
        ("W_o", {}, 0), ("W_o", {}, 1), ("rank 4", {}, 0), ("rank 4", {}, 1),
    ]  # fmt: skip


def test_overrides_go_to_the_sweep_or_to_its_base(base, write, sweep_data):
    sweep_data["arms"]["r 1.5"] = {"model.head_output": {"kind": "factorized", "rank": 1}}
    path = write("sweep.yaml", sweep_data)
    overrides = [
        "seeds=[7]", "grid.optimizer.learning_rate=[0.5]", "model.dropout=0.1", "name=t",
        "arms.r 1.5.model.bias=false", "arms.new={model.n_layers: 1}", "grid.model.context=[8, 9]",
    ]  # fmt: skip
    sweep, runs = load_sweep(path, overrides)
    assert (sweep.name, sweep.seeds) == ("t", [7])
    assert sweep.grid == {"optimizer.learning_rate": [0.5], "model.context": [8, 9]}
    assert [run.arm for run in runs[::2]] == ["W_o", "rank 4", "r 1.5", "new"]
    assert {(run.config.seed, run.config.optimizer.learning_rate, run.config.model.dropout) for run in runs} == {
        (7, 0.5, 0.1)
    }
    assert [run.config.model.bias for run in runs[::2]] == [True, True, False, True]
    assert [run.config.model.n_layers for run in runs[::2]] == [2, 2, 2, 1]


def test_the_base_may_be_given_on_the_command_line_from_here(write, tiny, sweep_data, tmp_path, monkeypatch):
    write("here/other.yaml", tiny)
    monkeypatch.chdir(tmp_path / "here")
    assert load_sweep(write("there/sweep.yaml", sweep_data), ["base=other.yaml"])[1]
    ((source, path, value, said),) = problems_of(load_sweep, write("there/sweep.yaml", sweep_data))
    assert (path, value) == ("base", "base.yaml")
    assert source.endswith("there/sweep.yaml")
    assert "the path of a run config, from this file; looked at" in said


def test_a_text_given_in_an_arm_lies_beside_the_sweep_file(write, tiny, sweep_data, tmp_path):
    write("base/base.yaml", tiny)
    text = write("sweeps/input.txt", "text")
    arms = {"W_o": {}, "text": {"data.corpus": {"kind": "text", "path": "input.txt"}}}
    path = write("sweeps/sweep.yaml", sweep_data | {"base": "../base/base.yaml", "arms": arms})
    assert {run.config.data.corpus.path for run in load_sweep(path)[1] if run.arm == "text"} == {str(text)}


def test_everything_wrong_is_told_at_once(write, tiny, sweep_data):
    tiny["model"]["mlp"] = "gelo"
    write("base.yaml", tiny)
    sweep_data |= {"baseline": "W_O", "seeds": [0, 0, -1], "nme": 1}
    sweep_data["arms"] |= {
        "bad": {"model.d_modl": 1},
        "worse": 3,
        "large": {"model.head_output": {"kind": "factorized", "rank": 999}},
    }
    sweep_data["grid"] = {"optimizer.learning_rate": [1e-3, -1], "model.dropout": []}
    path = write("sweep.yaml", sweep_data)
    problems = problems_of(load_sweep, path, ["seed=3", "optimiser.kind=adamw", "training.steps=0", "foo"])
    expected = [
        ("command line", "seed", "3", "seeds=[…]"),
        ("command line", "optimiser.kind", "adamw", "did you mean 'optimizer'?"),
        ("command line", "training.steps", "0", "at least 1"),
        ("command line", "", "foo", "key=value"),
        (str(path), "baseline", "W_O", "did you mean 'W_o'?"),
        (str(path), "seeds.1", "0", "each seed once"),
        (str(path), "seeds.2", "-1", "at least 0"),
        (str(path), "nme", "1", "did you mean 'name'?"),
        (str(path), "arms.bad.model.d_modl", "1", "did you mean 'd_model'?"),
        (str(path), "arms.worse", "3", "a mapping"),
        (str(path), "arms.large.model.head_output.rank", "999", "a rank from 1 to d_model = 128"),
        (str(path), "grid.optimizer.learning_rate.1", "-1", "a number above 0"),
        (str(path), "grid.model.dropout", "[]", "a list with at least 1 entry"),
        (str(path.parent / "base.yaml"), "model.mlp", "gelo", "did you mean 'gelu'?"),
    ]
    for source, where, value, words in expected:
        assert any(p[:3] == (source, where, value) and words in p[3] for p in problems), (where, problems)
    assert len(problems) == len(expected), problems


@pytest.mark.parametrize(
    ("changes", "path", "value", "words"),
    [
        ({"grid": {}}, "grid", "{}", "a mapping of keys to values with at least 1 entry, or null"),
        ({"arms": {}}, "arms", "{}", "with at least 1 entry"),
        ({"seeds": []}, "seeds", "[]", "a list with at least 1 entry"),
        ({"seeds": 3}, "seeds", "3", "a list with at least 1 entry"),
        ({"seeds": ["x", 1]}, "seeds.0", "x", "a whole number of at least 0"),
        ({"name": "../x"}, "name", "../x", "letters, digits"),
        ({"name": "x" * 101}, "name", "x" * 77 + "...", "letters, digits"),
        ({"base": 3}, "base", "3", "text that is not empty"),
        ({"grid": {"optimizer.learning_rate": [1, 2, 1]}}, "grid.optimizer.learning_rate.2", "1", "each value"),
        ({"grid": {"optimizer.learning_rate": 3}}, "grid.optimizer.learning_rate", "3", "a list"),
        ({"grid": {"optimizer.lerning_rate": [1]}}, "grid.optimizer.lerning_rate.0", "1", "'learning_rate'?"),
        ({"grid": {"seed": [1, 2]}}, "grid.seed", "[1, 2]", "seeds: […] beside the grid"),
        ({"grid": {"model.head_output.rank": [1]}}, "arms.rank 4.model.head_output",
         '{"kind": "factorized", "rank": 4}', "a key that the grid does not set"),
        ({"arms": {"W_o": {"seed": 1}}}, "arms.W_o.seed", "1", "seeds: […] beside the arms"),
        ({"grid": {"model": [{}], "model.dropout": [0.1]}}, "grid.model", "[{}]", "the grid's model.dropout"),
    ],
)  # fmt: skip
def test_one_wrong_entry(told, changes, path, value, words):
    assert has(told(**changes), path, value, words), told(**changes)


def test_one_arm_given_twice(base, write):
    text = yaml_text.write(SWEEP).replace("arms:\n", "arms:\n  W_o: {}\n")
    ((source, path, _, said),) = problems_of(load_sweep, write("sweep.yaml", text))
    assert (path, "line 5 gives it too" in said) == ("arms.W_o", True)
    assert source.endswith("sweep.yaml:6")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("optimizer.learning_rate=1", "grid.optimizer.learning_rate=[…]: the sweep's grid sets this key"),
        ("optimizer.learning_rate.x=1", "the sweep's grid sets this key"),
        ("model.head_output.rank=4", "arm 'rank 4' sets model.head_output"),
        ("model.head_output=standard", "arm 'rank 4' sets model.head_output"),
    ],
)
def test_an_override_that_would_be_lost(told, override, words):
    assert has(told(override), *override.split("="), words), told(override)


def test_a_grid_that_would_never_end_is_refused_at_once(told):
    grid = {f"model.k{i}": list(range(100)) for i in range(20)}
    ((_, path, _, said),) = told(grid=grid)
    assert path == "grid"
    assert "at most 100,000 runs" in said


def test_a_run_config_is_no_sweep(base):
    ((_, _, _, said),) = problems_of(load_sweep, base)
    assert "this is a run config; try `wm train`" in said


@pytest.mark.parametrize(
    "text", ["", "[1]", "arms: 3", "base: base.yaml", "grid: 3\narms: {a: {b.c: 1}}", "arms: {'': {'': 1}}"]
)
def test_what_is_hardly_a_sweep(base, write, text):
    assert problems_of(load_sweep, write("sweep.yaml", text), ["grid.a=[1]", "arms.x.y=3"])


def test_arms_and_grid_given_whole_replace_those_of_the_file(base, write, sweep_data):
    sweep, runs = load_sweep(
        write("sweep.yaml", sweep_data),
        [
            "arms={W_o: {}, rank 8: {model.head_output: {kind: factorized, rank: 8}}}",
            "grid={optimizer.learning_rate: [4e-3], model.context: [32, 64]}",
            "seeds=[7]",
        ],
    )
    assert [*sweep.arms] == ["W_o", "rank 8"]
    assert [(run.arm, run.settings["model.context"], run.config.optimizer.learning_rate) for run in runs] == [
        (arm, context, 4e-3) for arm in ("W_o", "rank 8") for context in (32, 64)
    ]

"""The algebra of sweep files: products, sums, draws, arms that vary by themselves and extend others."""

import hashlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.config.examples import SWEEP, TINY, has, problems_of
from wmresearch.config import load_run, load_sweep, run_id, yaml_text
from wmresearch.config.variation import count
from wmresearch.sweeps import drawn, grid, product, runs, zipped

RATE, DECAY, DROPOUT, STEPS = "optimizer.learning_rate", "optimizer.weight_decay", "model.dropout", "training.steps"


@pytest.fixture
def loaded(base, write, sweep_data):
    """The runs of a sweep with one seed and changes."""

    def load(*overrides, **changes):
        data = {key: value for key, value in sweep_data.items() if key != "grid"} | {"seeds": [0]} | changes
        return load_sweep(write("sweep.yaml", data), overrides)[1]

    return load


@pytest.fixture
def told(base, write, sweep_data):
    def problems(*overrides, **changes):
        data = {key: value for key, value in sweep_data.items() if key != "grid"} | changes
        return problems_of(load_sweep, write("sweep.yaml", data), overrides)

    return problems


def settings(found, arm="W_o"):
    return [run.settings for run in found if run.arm == arm]


def test_run_ids_are_what_they_were_before_there_was_more_than_a_grid(base, write):
    path = write("sweep.yaml", SWEEP)
    ids = [run_id(run.config, "digest") for run in load_sweep(path)[1]]
    assert ids == [
        "cd4d4652b053", "5d789477cf47", "eb4c71b3abf5", "359500f43270",
        "b7fa12b67948", "a44ad2b3d567", "1a7f1ca4b74e", "e246f4893ad9",
    ]  # fmt: skip
    ids = [run_id(run.config, "digest") for run in load_sweep("quickstart")[1]]
    assert hashlib.sha256(" ".join(ids).encode()).hexdigest()[:12] == "379dba2c31eb"


def test_grid_zip_list_and_random_multiply_and_entries_of_a_list_add(loaded):
    found = loaded(
        grid={RATE: [1e-3, 2e-3]},
        zip={DECAY: [0.0, 0.1], "optimizer.clip_norm": [1.0, 2.0]},
        list=[{DROPOUT: 0.1}, {"model.bias": False, "grid": {DROPOUT: [0.2, 0.3]}}],
    )
    clips = {0.0: 1.0, 0.1: 2.0}
    assert settings(found) == [
        {RATE: rate, DECAY: decay, "optimizer.clip_norm": clips[decay]} | entry
        for rate in (1e-3, 2e-3)
        for decay in clips
        for entry in (
            {DROPOUT: 0.1}, {"model.bias": False, DROPOUT: 0.2}, {"model.bias": False, DROPOUT: 0.3},
        )
    ]  # fmt: skip
    for run in found:
        assert run.config.optimizer.clip_norm == clips[run.config.optimizer.weight_decay]
        assert run.config.model.bias == run.settings.get("model.bias", True)


def test_an_arm_varies_by_itself_and_extends_others(loaded):
    arms = {
        "W_o": {},
        "low": {"model.head_output": {"kind": "factorized", "rank": 4}, "grid": {DROPOUT: [0.1, 0.2]}},
        "lower": {"extends": "low", "model.head_output.rank": 2},
        "lowest": {"extends": "lower", "model.bias": False, "grid": {STEPS: [99]}},
        "other": {"extends": "lower", "model.head_output": "none", "grid": {STEPS: [70]}},
    }
    found = loaded(arms=arms, grid={RATE: [1e-3]})
    seen = [
        (run.arm, run.settings, getattr(run.config.model.head_output, "rank", None), run.config.model.bias)
        for run in found
    ]
    assert seen == [
        ("W_o", {RATE: 1e-3}, None, True),
        ("low", {RATE: 1e-3, DROPOUT: 0.1}, 4, True),
        ("low", {RATE: 1e-3, DROPOUT: 0.2}, 4, True),
        ("lower", {RATE: 1e-3, DROPOUT: 0.1}, 2, True),
        ("lower", {RATE: 1e-3, DROPOUT: 0.2}, 2, True),
        ("lowest", {RATE: 1e-3, STEPS: 99}, 2, False),
        ("other", {RATE: 1e-3, STEPS: 70}, None, True),
    ]


PARTS = {
    "grid": st.dictionaries(
        st.sampled_from(["a.b", "a.c"]), st.lists(st.integers(0, 9), min_size=1, max_size=2), min_size=1
    ),
    "zip": st.integers(1, 3).map(lambda n: {"d.e": list(range(n)), "d.f": list(range(n))}),
    "random": st.integers(1, 3).map(lambda n: {"count": n, "keys": {"g.h": {"uniform": [0, 1]}}}),
}
ENTRIES = st.fixed_dictionaries({}, optional=PARTS)
BLOCKS = st.fixed_dictionaries({}, optional=PARTS | {"list": st.lists(ENTRIES, min_size=1, max_size=3)})


def combinations(block):
    """How many settings a block stands for, counted another way: by making them."""
    found = [{}]
    for key, values in block.get("grid", {}).items():
        found = [one | {key: value} for one in found for value in values]
    if "zip" in block:
        found = product(found, zipped(block["zip"]))
    if "list" in block:
        found = [one | other for entry in block["list"] for one in found for other in combinations(entry)]
    if "random" in block:
        found = product(found, drawn(block["random"]["keys"], block["random"]["count"]))
    return found


@given(BLOCKS)
def test_settings_are_counted_without_making_them(block):
    assert count(block) == len(combinations(block))


POINTS = st.fixed_dictionaries(
    {},
    optional={
        "grid": st.lists(st.sampled_from([1e-3, 2e-3, 4e-3]), min_size=1, unique=True).map(lambda v: {RATE: v}),
        "zip": st.integers(1, 3).map(lambda n: {DECAY: [0.1 * i for i in range(n)], STEPS: [30 + i for i in range(n)]}),
        "random": st.integers(1, 4).map(lambda n: {"count": n, "keys": {DROPOUT: {"uniform": [0.1, 0.5]}}}),
    },
)


@given(POINTS, st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True))
def test_a_file_and_python_make_the_same_runs(tmp_path_factory, block, seeds):
    folder = tmp_path_factory.mktemp("sweep")
    sweep = {"name": "s", "base": "base.yaml", "baseline": "W_o", "arms": {"W_o": {}}, "seeds": seeds} | block
    (folder / "base.yaml").write_text(yaml_text.write(TINY), encoding="utf-8")
    (folder / "sweep.yaml").write_text(yaml_text.write(sweep), encoding="utf-8")
    made = [run.config for run in load_sweep(folder / "sweep.yaml")[1]]
    parts = [grid(block.get("grid", {}))]
    parts += [zipped(block["zip"])] if "zip" in block else []
    parts += [drawn(**block["random"])] if "random" in block else []
    assert made == runs(load_run(folder / "base.yaml"), product(*parts), seeds)
    assert len(made) == count(block) * len(seeds)


@given(st.integers(0, 99), st.integers(1, 20))
def test_draws_follow_from_their_seed_and_keep_those_of_fewer_draws_and_keys(seed, number):
    keys = {
        "a": {"log_uniform": [1e-4, 1e-1]}, "b": {"uniform": [-1.0, 1.0]}, "c": {"integers": [3, 5]},
        "d": {"choice": ["x", None]},
    }  # fmt: skip
    found = drawn(keys, number, seed)
    assert found == drawn(keys, number + 3, seed)[:number]
    assert [one["b"] for one in found] == [one["b"] for one in drawn({"b": keys["b"]}, number, seed)]
    for one in found:
        assert 1e-4 <= one["a"] <= 1e-1 and -1 <= one["b"] <= 1 and one["c"] in (3, 4, 5) and one["d"] in ("x", None)


def test_draws_fill_their_range_and_differ_by_seed():
    keys = {"a": {"log_uniform": [1e-4, 1e-1]}, "c": {"integers": [1, 3]}}
    found = drawn(keys, 300)
    logs = [math.log10(one["a"]) for one in found]
    assert abs(sum(logs) / 300 + 2.5) < 0.15 and min(logs) < -3.9 and max(logs) > -1.1
    assert {one["c"] for one in found} == {1, 2, 3}
    assert found != drawn(keys, 300, seed=1)


TUNED = {"tune": {"keys": {RATE: [1e-3, 2e-3]}}, "seeds": {"tune": [5, 6], "report": [0, 1]}}


def test_a_sweep_that_tunes_begins_with_the_tuning_seeds_at_every_value(loaded):
    arms = {"W_o": {}, "rank 4": {"model.head_output": {"kind": "factorized", "rank": 4}, "tune": {RATE: [3e-3, 6e-3]}}}
    found = loaded(**TUNED | {"arms": arms})
    values = {"W_o": (1e-3, 2e-3), "rank 4": (3e-3, 6e-3)}
    assert [(run.arm, run.tuned, run.seed, run.config.optimizer.learning_rate) for run in found] == [
        (arm, {RATE: rate}, seed, rate) for arm in arms for rate in values[arm] for seed in (5, 6)
    ]
    assert all(run.settings == {} for run in found)


def test_overrides_reach_what_holds_dotted_keys(loaded):
    found = loaded(
        f"tune.keys.{RATE}=[4e-3, 5e-3]", "seeds.tune=[9]", f"arms.W_o.tune.{RATE}=[7e-3, 8e-3]",
        f"zip.{DROPOUT}=[0.1, 0.2]", "tune.extend=0", f"arms.rank 4.grid.{DECAY}=[0.3]", "match=flops",
        **TUNED,
    )  # fmt: skip
    assert {run.seed for run in found} == {9} and {run.match.budget for run in found} == {"flops"}
    assert [run.tuned[RATE] for run in found if run.arm == "W_o"] == [7e-3, 8e-3] * 2
    assert {json.dumps(setting) for setting in settings(found, "rank 4")} == {
        json.dumps({DROPOUT: dropout, DECAY: 0.3}) for dropout in (0.1, 0.2)
    }


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"zip": {RATE: [1, 2], DECAY: [0]}}, f"zip.{DECAY}", "2 values, as many as optimizer.learning_rate has"),
        ({"list": [{RATE: 1}, {"grid": {RATE: []}}]}, f"list.1.grid.{RATE}", "a list with at least 1 entry"),
        ({"list": [{"model.dropot": 0.1}]}, "list.0.model.dropot", "did you mean 'dropout'?"),
        ({"list": [{"seed": 1}]}, "list.0.seed", "seeds: […] beside the list"),
        ({"grid": {RATE: [1]}, "list": [{RATE: 2}]}, f"list.0.{RATE}", "apart from the grid's optimizer.learning_rate"),
        ({"zip": {"model.bias": [True]}, "arms": {"W_o": {"model.bias": False}}}, "arms.W_o.model.bias", "the zip"),
        ({"random": {"count": 1, "keys": {RATE: {}}}}, f"random.keys.{RATE}.choice", "one of uniform, log_uniform"),
        ({"random": {"count": 1, "keys": {RATE: {"uniform": [2, 1]}}}}, f"random.keys.{RATE}.uniform", "a lower and"),
        ({"random": {"count": 1, "keys": {DROPOUT: {"uniform": [2, 3]}}}}, f"random.keys.{DROPOUT}", "below 1"),
        ({"arms": {"W_o": {}, "b": {"extends": "c"}}}, "arms.b.extends", "the name of an arm"),
        ({"arms": {"W_o": {}, "b": {"extends": "c"}, "c": {"extends": "b"}}}, "arms.c.extends", "does not extend c in"),
        ({"arms": {"W_o": {"grid": {RATE: [1]}}}}, "arms.W_o", "a baseline without settings of its own"),
        ({"arms": {"W_o": {}, "b": {"grid": {RATE: [0.1, -1]}}}}, f"arms.b.grid.{RATE}.1", "a number above 0"),
        ({"arms": {"W_o": {}, "b": {RATE: 1, "grid": {RATE: [2]}}}}, f"arms.b.grid.{RATE}", "which the arm sets"),
        ({"match": "weights"}, "match", "one of parameters, flops, none"),
        ({"match": {"budget": "flops", "by": ["model.d_model"]}}, "match.by.0", "one of model.d_mlp"),
        ({"tune": {"keys": {RATE: [1, 2]}}}, "seeds", "tuning has seeds of its own"),
        ({"seeds": {"tune": [1], "report": [2]}}, "seeds", "seeds by role are for tuning"),
        (TUNED | {"seeds": {"tune": [1], "report": [0, 1]}}, "seeds.report.1", "not among those that tune"),
        (TUNED | {"grid": {RATE: [1]}}, f"grid.{RATE}", "apart from the tune's optimizer.learning_rate"),
        (TUNED | {"arms": {"W_o": {RATE: 1}}}, f"arms.W_o.{RATE}", "a key that the tune does not set"),
        (TUNED | {"arms": {"W_o": {"tune": {RATE: [1, 2, 3]}}}}, f"arms.W_o.tune.{RATE}", "2 values, as many as the"),
        (TUNED | {"arms": {"W_o": {"tune": {DECAY: [1, 2]}}}}, f"arms.W_o.tune.{DECAY}", "a key that the sweep tunes"),
        (TUNED | {"tune": {"keys": {RATE: [-1, 1]}}}, f"tune.keys.{RATE}.0", "a number above 0"),
        ({"reach": True}, "reach", "training.evaluate_every in the base"),
    ],
)  # fmt: skip
def test_one_wrong_entry(told, changes, path, words):
    problems = told(**changes)
    assert any(p[1] == path and words in p[3] for p in problems), problems


def test_an_override_that_would_be_lost(told):
    assert has(told(f"{RATE}=1", list=[{RATE: 2}]), RATE, "1", "the sweep's list sets this key")
    assert has(told(f"{RATE}=1", **TUNED), RATE, "1", "the sweep's tune sets this key")


def test_too_many_runs_through_arms_that_extend_others_are_refused(told):
    wide = {"grid": {f"model.head_output.settings.k{i}": list(range(100)) for i in range(2)}}
    arms = {"W_o": {}, "wide": wide} | {f"e{i}": {"extends": "wide"} for i in range(5)}
    problems = told(arms=arms)
    assert any("at most 100,000 runs" in p[3] for p in problems), problems

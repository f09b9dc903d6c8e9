"""Whatever stands in a config, the answer is a config or problems that each say where and what was expected."""

import copy
import math

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.config.examples import SWEEP, TINY
from wmresearch.config import ConfigError, RunConfig, load_run, load_sweep, parse_run, yaml_text

FULL = RunConfig.model_validate(TINY).model_dump()  # every key, so that every key is mutated
FULL["optimizer"]["betas"] = [0.9, 0.95]
FULL["data"] |= {"split": [0.9, 0.1], "corpus": {"kind": "text", "train": "a", "validation": "b"}}
FULL["model"] |= {"head_output": {"kind": "factorized", "rank": 4}, "positions": {"kind": "rope"}, "n_kv_heads": 2}
FULL["parallel"] = {"mesh": {"data": 1}}
FULL["penalties"] = []

NASTY = [
    *(
        -1,
        0,
        0.5,
        2**32,
        10**400,
        math.nan,
        math.inf,
        "",
        "kind",
        "standard",
        "rope",
        "text",
        "stdlib/",
        "stdlib/small",
    ),
    *("bpe", "linear", "gelo", "a\0b", "\udcff", "x" * 5000),
]
WRONG = st.recursive(
    st.none() | st.booleans() | st.sampled_from(NASTY) | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["kind", "rank", "warmup", "path", "x", "d_model", ""]), inner, max_size=3)
    ),
    max_leaves=5,
)


def paths_of(data, path=()):
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, item in items:
        yield from paths_of(item, (*path, key))


@st.composite
def mutated(draw, valid):
    """The valid data with one to six entries replaced, removed, renamed or added."""
    data = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, 6))):
        path = draw(st.sampled_from([path for path in paths_of(data) if path]))
        parent = data
        for key in path[:-1]:
            parent = parent[key]
        key = path[-1]
        what = draw(st.sampled_from(["replace", "remove", "rename", "add"]))
        if what == "replace":
            parent[key] = draw(WRONG)
        elif what == "remove" or isinstance(parent, list):
            del parent[key]
        elif what == "rename":
            parent[f"{key}x"] = parent.pop(key)
        else:
            parent[draw(st.text(max_size=5))] = draw(WRONG)
    return data


def problems_of(function, *arguments):
    """The problems, each of them whole; none may come as another exception."""
    try:
        function(*arguments)
    except ConfigError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.source
            assert problem.expected
            assert "\n" not in problem.expected
            assert len(problem.value) <= 80
            assert "Input should" not in str(problem)
            str(problem).encode()
        assert len(set(error.problems)) == len(error.problems)
        return error.problems
    return []


@settings(max_examples=300)
@given(mutated(FULL))
@example(FULL | {"optimizer": FULL["optimizer"] | {"learning_rate": 10**400}})
@example(FULL | {"data": FULL["data"] | {"split": [10**400, 1]}})
def test_a_run_config_of_any_data(data):
    for problem in problems_of(parse_run, data, "run"):
        assert problem.source == "run"
        assert problem.path


def test_numbers_too_long_to_print():
    for data in (10**5000, {"x": [-(10**5000)]}):
        assert problems_of(parse_run, FULL | {"seed": data}, "run")
        assert problems_of(parse_run, FULL | {"optimizer": FULL["optimizer"] | {"learning_rate": data}}, "run")


@settings(max_examples=100)
@given(mutated(FULL), st.data())
def test_wrong_entries_are_told_apart_from_others(data, extra):
    """What one wrong entry is told does not depend on an unknown key elsewhere."""
    problems = problems_of(parse_run, data, "run")
    target = extra.draw(st.sampled_from(["model", "training", "data", "tracking"]))
    assume(isinstance(data.get(target), dict))
    told = problems_of(parse_run, data | {target: data[target] | {"an_unknown_key": 1}}, "run")
    added = [problem for problem in told if problem.path == f"{target}.an_unknown_key"]
    assert len(added) == 1
    assert {problem for problem in told if problem not in added} == set(problems)


@settings(max_examples=100)
@given(mutated(SWEEP))
def test_a_sweep_of_any_data(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "base.yaml").write_text(yaml_text.write(TINY), encoding="utf-8")
    try:
        text = yaml_text.write(data)
        (folder / "sweep.yaml").write_text(text, encoding="utf-8")
    except ValueError:
        assume(False)  # numbers and texts that no file can hold
    for problem in problems_of(load_sweep, folder / "sweep.yaml"):
        assert problem.source.startswith((str(folder / "sweep.yaml"), str(folder / "base.yaml")))


@settings(max_examples=100)
@given(st.lists(st.sampled_from([".".join(map(str, path)) for path in paths_of(FULL) if path]), max_size=3), st.data())
def test_overrides_of_any_kind(tmp_path_factory, keys, data):
    path = tmp_path_factory.mktemp("run") / "base.yaml"
    path.write_text(yaml_text.write(TINY), encoding="utf-8")
    problems_of(load_run, path, [f"{key}={data.draw(st.text(max_size=12))}" for key in keys])

"""Penalties, starts and ranks: which do not go together, and their short forms in files, overrides and sweeps."""

import jsonschema
import pytest

from tests.config.examples import has, problems_of
from wmresearch.config import ConfigError, load_run, load_sweep, parse_run
from wmresearch.config.data import MixtureConfig
from wmresearch.config.factor_start import GaugeStart, RunStart, SpectralStart
from wmresearch.config.schema import sweep_schema

FACTORIZED = {"kind": "factorized", "rank": 4}


def told(tiny, penalties=(), **output):
    tiny["model"] |= {"head_output": {"kind": "factorized", **output}} if output else {}
    return problems_of(parse_run, tiny | {"penalties": list(penalties)}, "run")


@pytest.mark.parametrize(
    ("penalty", "key", "value", "words"),
    [
        ({"kind": "nuclear"}, "strength", "", "or a target"),
        ({"kind": "nuclear", "strength": 1.0, "target": {"value": 1.0}}, "strength", "1.0", "null where there is"),
        ({"kind": "l1", "target": {"value": 1.0}, "schedule": {"kind": "cosine"}}, "schedule", None, "steered"),
        ({"kind": "l1", "target": {"value": 1.0}, "step": "proximal"}, "target", None, "null for a proximal step"),
        ({"kind": "l1", "strength": 1.0, "step": "proximal", "every": 2}, "every", "2", "1: a proximal step"),
        ({"kind": "frobenius", "strength": 1.0, "step": "proximal"}, "step", "proximal", "a key that is known"),
        ({"kind": "nuclear", "strength": -1.0}, "strength", "-1.0", "at least 0"),
        ({"kind": "nuclear", "target": {"value": 0.0}}, "target.value", "0.0", "above 0"),
        ({"kind": "nuclear", "strength": 1.0, "every": 0}, "every", "0", "at least 1"),
        ({"kind": "group_lasso", "strength": 1.0, "groups": "blocks"}, "block", "", "size of a block"),
        ({"kind": "group_lasso", "strength": 1.0, "groups": "blocks", "block": 7}, "block", "7", "divisor of model.d"),
        ({"kind": "group_lasso", "strength": 1.0, "groups": "blocks", "block": 8, "step": "proximal"}, "step",
         "proximal", "no proximal step"),
        ({"kind": "schatten", "strength": 1.0}, "p", "", "required"),
    ],
)  # fmt: skip
def test_a_penalty_that_does_not_hold_together_is_told_by_its_place(tiny, penalty, key, value, words):
    problems = told(tiny, [{"kind": "head_overlap", "strength": 1.0}, penalty])
    assert len(problems) == 1, problems
    path, value = f"penalties.1.{key}", problems[0][2] if value is None else value
    assert has(problems, path, value, words), problems


@pytest.mark.parametrize("kind", [{"kind": "dense"}, {"kind": "low_rank_diagonal", "rank": 3}, {"kind": "none"}])
def test_a_proximal_step_needs_stored_factors(tiny, kind):
    tiny["model"]["head_output"] = kind
    problems = told(tiny, [{"kind": "nuclear", "strength": 1.0, "step": "proximal"}])
    assert len(problems) == 1
    assert has(problems, "penalties.0.step", "proximal", "needs stored factors A, B", kind["kind"])


def test_a_proximal_step_needs_heads_no_wider_than_the_model(tiny):
    tiny["model"]["d_head"] = 200
    problems = told(tiny, [{"kind": "nuclear", "strength": 1.0, "step": "proximal"}])
    assert len(problems) == 1 and has(problems, "penalties.0.step", "proximal", "d_head of at most d_model = 128")
    assert not told(tiny, [{"kind": "nuclear", "strength": 1.0, "step": "proximal"}], rank=3)


def test_all_that_is_wrong_is_told_at_once(tiny):
    tiny["optimizer"] |= {"decay": "gradent", "frobenius_decay": -1, "decay_of": {"heads": 1.0}}
    penalties = [
        {"kind": "nuclear"}, {"kind": "nuclear", "strength": 1.0},
        {"kind": "l1", "strength": 1.0, "every": 3, "step": "proximal"},
    ]  # fmt: skip
    problems = told(tiny, penalties, rank=400, init={"gauge": 0.5}, rebalance_every=0)
    assert {problem[1] for problem in problems} == {
        "optimizer.decay", "optimizer.frobenius_decay", "optimizer.decay_of.heads", "penalties.0.strength",
        "penalties.1.kind", "penalties.2.every", "model.head_output.rank", "model.head_output.init",
        "model.head_output.rebalance_every",
    }  # fmt: skip


ROW = [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("output", "path", "value", "words"),
    [
        ({}, "model.head_output.rank", "", "a rank, or `ranks`"),
        ({"rank": 3, "ranks": [ROW, ROW]}, "model.head_output.rank", "3", "not both"),
        ({"ranks": [ROW]}, "model.head_output.ranks", "[[1, 2, 3, 4]]", "n_layers = 2"),
        ({"ranks": [ROW, ROW[:3]]}, "model.head_output.ranks.1", "[1, 2, 3]", "each of 4 key/value heads"),
        ({"ranks": [ROW, [0, 0, 0, 0]]}, "model.head_output.ranks.1", "[0, 0, 0, 0]", "one of them above 0"),
        ({"ranks": [ROW, [0, 0, 0, 129]]}, "model.head_output.ranks.1", "[0, 0, 0, 129]", "d_model = 128"),
        ({"ranks": [ROW, [-1, 1, 1, 1]]}, "model.head_output.ranks.1.0", "-1", "at least 0"),
        ({"ranks": [ROW, 3]}, "model.head_output.ranks.1", "3", "a list"),
        ({"ranks": [ROW, ROW], "init": {"gauge": 3}}, "model.head_output.init", '{"gauge": 3}', "another start"),
        ({"rank": 3, "init": {"gauge": 0.5}}, "model.head_output.init", '{"gauge": 0.5}', "at least 1"),
        ({"rank": 3, "init": {"from": 3}}, "model.head_output.init", '{"from": 3}', "directory of a run"),
        ({"rank": 3, "init": "spectrel"}, "model.head_output.init", "spectrel", "spectral"),
    ],
)
def test_ranks_and_starts_that_do_not_fit_are_told(tiny, output, path, value, words):
    tiny["model"]["head_output"] = {"kind": "factorized"} | output
    problems = told(tiny)
    assert len(problems) == 1 and has(problems, path, value, words), problems


def test_ranks_are_counted_by_key_value_heads(tiny):
    tiny["model"] |= {"n_kv_heads": 2, "head_output": {"kind": "factorized", "ranks": [[1, 128], [0, 5]]}}
    assert not told(tiny)


SHORT = [
    ("spectral", SpectralStart()),
    ({"gauge": 10}, GaugeStart(condition=10.0)),
    ({"kind": "gauge", "condition": 10}, GaugeStart(condition=10.0)),
    ({"from": "runs/x"}, RunStart(run="runs/x")),
    ({"from": "runs/x", "step": 5}, RunStart(run="runs/x", step=5)),
]


@pytest.mark.parametrize(("written", "expected"), SHORT)
def test_a_start_in_a_file(tiny, written, expected):
    tiny["model"]["head_output"] = FACTORIZED | {"init": written}
    assert parse_run(tiny, "run").model.head_output.init == expected


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["init.gauge=10"], GaugeStart(condition=10.0)),
        (["init={gauge: 10}"], GaugeStart(condition=10.0)),
        (["init=spectral"], SpectralStart()),
        (["init.from=runs/x"], RunStart(run="runs/x")),
        (["init.from=runs/x", "init.step=5"], RunStart(run="runs/x", step=5)),
    ],
)
def test_a_start_on_the_command_line(base, overrides, expected):
    given = ["model.head_output.kind=factorized", "model.head_output.rank=4"]
    loaded = load_run(base, [*given, *(f"model.head_output.{override}" for override in overrides)])
    assert loaded.model.head_output.init == expected


def test_starts_in_a_sweep(write, tiny, sweep_data):
    """As whole values of the grid, as a grid over κ, and in an arm."""
    tiny["model"]["head_output"] = FACTORIZED
    write("base.yaml", tiny)
    init = "model.head_output.init"
    sweep_data |= {"arms": {"W_M": {}}, "baseline": "W_M", "seeds": [0]}

    def starts(**changes):
        runs = load_sweep(write("sweep.yaml", sweep_data | changes))[1]
        return [run.config.model.head_output.init for run in runs]

    assert starts(grid={init: [short for short, _ in SHORT]}) == [start for _, start in SHORT]
    assert starts(grid={f"{init}.gauge": [1, 100]}) == [GaugeStart(condition=1.0), GaugeStart(condition=100.0)]
    arms = {"W_M": {"model.head_output": FACTORIZED | {"init": {"from": "runs/x"}}}, "spectral": {init: "spectral"}}
    assert starts(grid=None, arms=arms) == [RunStart(run="runs/x"), SpectralStart()]
    jsonschema.Draft202012Validator(sweep_schema()).validate(sweep_data | {"grid": {f"{init}.gauge": [1, 100]}})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["data.mixture={recall: 0.7, induction: 0.5}"], ("data.mixture.induction", "at most 0.3")),
        (["data.mixture={}"], ("data.mixture.recall", "above 0")),
        (["data.mixture.recall=0.5", "model.context=2"], ("model.context", "at least 3")),
    ],
)
def test_a_mixture_that_cannot_be(base, changes, said):
    with pytest.raises(ConfigError) as refused:
        load_run(base, changes)
    (problem,) = refused.value.problems
    assert problem.path == said[0] and said[1] in problem.expected


def test_a_mixture_on_the_command_line(base):
    assert load_run(base, ["data.mixture.recall=0.5"]).data.mixture == MixtureConfig(recall=0.5)

"""From a sweep file to runs: their order, their ids, and what arms of one seed have in common."""

import itertools
import json

import jax
import numpy as np
import pytest

from tests.sweeps.mini import ARMS, SEEDS, write_sweep
from tests.training.examples import tiny
from wmresearch.config import ConfigError, load_run, run_id
from wmresearch.data import Stream, corpus_digest, load_corpus
from wmresearch.head_output.weights import declared, initialize
from wmresearch.model import Transformer
from wmresearch.sweeps.plan import make_plan
from wmresearch.training.randomness import Purpose, purpose_key
from wmresearch.training.run_directory import RunDirectory

GRID = {"optimizer.learning_rate": [1e-3, 1e-2], "optimizer.weight_decay": [0.0, 0.1]}


def ids(file, *overrides):
    """(arm, settings, seed) → run id."""
    runs = make_plan(file, overrides).runs
    return {(run.arm, json.dumps(run.settings), run.seed): run.run_id for run in runs}


def test_runs_are_arms_by_grid_by_seeds_in_this_order(tmp_path):
    plan = make_plan(write_sweep(tmp_path, grid=GRID, seeds=[5, 3]))
    arms = ["W_o", "W_M rank 3"]
    points = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
    assert [(run.arm, run.settings, run.seed) for run in plan.runs] == list(itertools.product(arms, points, [5, 3]))
    for run in plan.runs:
        assert run.config.seed == run.seed
        assert run.config.optimizer.learning_rate == run.settings["optimizer.learning_rate"]
        assert run.config.optimizer.weight_decay == run.settings["optimizer.weight_decay"]
    assert len({run.run_id for run in plan.runs}) == len(plan.runs)


def test_an_id_follows_from_what_changes_the_result_and_from_nothing_else(tmp_path):
    known = ids(write_sweep(tmp_path / "one", grid=GRID))
    assert ids(tmp_path / "one" / "sweep.yaml") == known, "the same again"
    renamed = {f"new {arm}": ARMS[arm] for arm in ("W_M rank 3", "W_o")}
    other = ids(write_sweep(tmp_path / "two", "another", grid=GRID, arms=renamed, seeds=[9, 1, 0]))
    for (arm, settings, seed), identity in known.items():
        assert other[f"new {arm}", settings, seed] == identity, "another place, order, name, more seeds"
    operational = [
        "training.steps_per_dispatch=1", "training.log_every=1", "training.checkpoint_every=2", "training.keep=1",
        "tracking.wandb.mode=offline",
    ]  # fmt: skip
    assert ids(tmp_path / "one" / "sweep.yaml", *operational) == known
    for change in ("training.steps=21", "data.batch_size=5", "model.dropout=0.1", "data.split=[0.8,0.1,0.1]"):
        assert not set(ids(tmp_path / "one" / "sweep.yaml", change).values()) & set(known.values()), change
    (tmp_path / "one" / "text.txt").write_text("another text\n" * 500, encoding="utf-8")
    assert not set(ids(tmp_path / "one" / "sweep.yaml").values()) & set(known.values())


def test_a_run_of_a_sweep_has_the_id_that_it_has_alone(tmp_path):
    sweep = write_sweep(tmp_path)
    config = load_run(tmp_path / "base.yaml", ["seed=1", "model.head_output={kind: factorized, rank: 3}"])
    assert run_id(config, corpus_digest(config.data)) == ids(sweep)["W_M rank 3", "{}", 1]


def test_arms_and_settings_that_are_one_run_are_refused(tmp_path):
    arms = {"a": {}, "b": {"model.head_output": {"kind": "standard"}}, "c": {"training.log_every": 1}}
    with pytest.raises(ConfigError) as caught:
        make_plan(write_sweep(tmp_path, arms=arms))
    assert [problem.path for problem in caught.value.problems] == ["arms.b", "arms.c"]
    assert all("differs from 'a'" in problem.expected for problem in caught.value.problems)
    with pytest.raises(ConfigError) as caught:
        make_plan(write_sweep(tmp_path, grid={"training.log_every": [1, 2]}))
    assert {problem.path for problem in caught.value.problems} == {"grid"}


def test_arms_of_one_seed_start_equal_in_all_they_share_and_read_the_same_batches(tmp_path):
    plan = make_plan(write_sweep(tmp_path, base=tiny("text.txt"), arms=ARMS, seeds=[4, 2**32 - 1]))
    made = {}
    for run in plan.runs:
        corpus = load_corpus(run.config.data)
        transformer = Transformer(run.config.model, corpus.tokenizer.vocab_size)
        params = initialize(transformer, purpose_key(run.seed, Purpose.INITIALIZATION))
        flat = dict(zip(declared(transformer), jax.tree.leaves(params), strict=True))
        stream = Stream(corpus.splits["train"].tokens, 4, 16, run.config.seed)
        made[run.arm, run.seed] = flat, stream.batches(3, 5)
    for seed, other_seed in ((4, 2**32 - 1), (2**32 - 1, 4)):
        params, batches = made["W_o", seed]
        for arm in ("W_M rank 3", "decay 1"):
            arm_params, arm_batches = made[arm, seed]
            shared = [name for name in params if name in arm_params and params[name].shape == arm_params[name].shape]
            assert {"embedding", "blocks/0/attention/query", "blocks/0/mlp/up"} <= set(shared)
            for name in shared:
                np.testing.assert_array_equal(params[name], arm_params[name], err_msg=name)
            np.testing.assert_array_equal(batches, arm_batches)
        assert (np.asarray(params["embedding"]) != np.asarray(made["W_o", other_seed][0]["embedding"])).any()
        assert (batches != made["W_o", other_seed][1]).any()


def test_really_run_arms_that_differ_later_have_the_same_first_loss_seed_by_seed(mini):
    """The arm `decay 1` has the model of `W_o`: before the first update, on the same batch, nothing can differ."""
    first = {}
    for run in json.loads((mini / "runs" / "sweep.json").read_text())["runs"]:
        lines = RunDirectory(mini / "runs" / run["run_id"]).metrics()
        first[run["arm"], run["seed"]] = lines[0]["train_loss"], lines[-1]["validation_loss"]
    for seed in SEEDS:
        assert first["W_o", seed][0] == first["decay 1", seed][0]
        assert first["W_o", seed][1] != first["decay 1", seed][1]
    assert first["W_o", 0][0] != first["W_o", 1][0]

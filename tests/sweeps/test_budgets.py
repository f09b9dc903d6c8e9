"""Arms that are made to spend what the baseline does."""

import pytest

from tests.sweeps.mini import write_sweep
from wmresearch.config import ConfigError, load_run
from wmresearch.data import symbols_of
from wmresearch.model.cost import model_cost
from wmresearch.sweeps import changed
from wmresearch.sweeps.budgets import TOLERANCE, Budgets, CannotMatchError, final_model
from wmresearch.sweeps.plan import make_plan

BASE = load_run("tiny")
EACH = ["model.d_mlp", "model.head_output.rank", "training.steps"]


def spent(config, budget):
    """Counted anew, from the whole model."""
    cost = model_cost(config.model, symbols_of(config.data))
    tokens = config.training.steps * config.data.batch_size * config.model.context
    return cost.parameters if budget == "parameters" else cost.training_flops_per_token * tokens


@pytest.mark.parametrize("budget", ["parameters", "flops"])
@pytest.mark.parametrize(
    ("change", "by", "key"),
    [
        ({"model.head_output": {"kind": "factorized", "rank": 4}}, EACH, "model.d_mlp"),
        ({"model.head_output": {"kind": "factorized", "rank": 4}, "model.mlp": "swiglu"}, EACH, "model.d_mlp"),
        ({"model.head_output": "dense"}, EACH, "model.d_mlp"),
        ({"model.head_output": {"kind": "factorized", "rank": 4}}, EACH[1:], "model.head_output.rank"),
        ({"model.d_mlp": 600, "model.head_output": {"kind": "factorized", "rank": 60}}, EACH, "model.head_output.rank"),
    ],
)
def test_a_matched_arm_spends_what_the_baseline_does_by_the_first_key_that_can(budget, change, by, key):
    arm = changed(BASE, change)
    assert abs(spent(arm, budget) / spent(BASE, budget) - 1) > TOLERANCE
    found, how = Budgets().matched(arm, BASE, budget, by, frozenset(change))
    off = spent(found, budget) / spent(BASE, budget) - 1
    assert abs(off) <= TOLERANCE and how.off == pytest.approx(off, abs=1e-12)
    assert how.key == key and found == changed(arm, {key: how.after})
    for other in (how.after - 1, how.after + 1):
        assert abs(spent(changed(arm, {key: other}), budget) / spent(BASE, budget) - 1) >= abs(off)


def test_steps_match_operations_and_never_parameters():
    arm = changed(BASE, {"model.head_output": {"kind": "factorized", "rank": 4}})
    found, how = Budgets().matched(arm, BASE, "flops", ["training.steps"], frozenset())
    assert (how.key, how.before, found.training.steps) == ("training.steps", 300, how.after) and how.after > 300
    with pytest.raises(CannotMatchError, match=r"training.steps = \d+ comes nearest, and is off by -"):
        Budgets().matched(arm, BASE, "parameters", ["training.steps"], frozenset())


def test_what_is_within_half_a_percent_stays_and_what_the_arm_sets_is_left_alone():
    near = changed(BASE, {"model.d_mlp": 513})
    assert Budgets().matched(near, BASE, "parameters", EACH, frozenset()) == (near, None)
    far = changed(BASE, {"model.d_mlp": 600})
    with pytest.raises(CannotMatchError) as caught:
        Budgets().matched(far, BASE, "parameters", EACH[:2], frozenset({"model.d_mlp"}))
    assert str(caught.value) == (
        "model.d_mlp: the arm sets it; model.head_output.rank: its head output has no rank that stays"
    )


def test_found_ranks_are_counted_at_the_end_with_their_sum_spread_evenly():
    kind = {"kind": "dynamic_rank", "rank": 16, "method": "energy", "total_rank": 20, "fine_tune_steps": 100}
    arm = changed(BASE, {"model.head_output": kind})
    final = final_model(arm.model)
    assert final.head_output.ranks == ((3, 3, 3, 3), (2, 2, 2, 2))
    budgets = Budgets()
    assert budgets.spent(arm, "parameters") == model_cost(final, 256).parameters
    start, end = (model_cost(model, 256).training_flops_per_token for model in (arm.model, final))
    assert budgets.spent(arm, "flops") == pytest.approx((200 * start + 100 * end) * 16 * 64)


def test_a_plan_says_of_every_arm_why_it_cannot_be_matched(tmp_path):
    arms = {"W_o": {}, "wide": {"model.d_mlp": 600}, "deep": {"model.n_layers": 8}, "free": {"model.d_mlp": 70}}
    arms["free"]["match"] = "none"
    with pytest.raises(ConfigError) as caught:
        make_plan(write_sweep(tmp_path, arms=arms, match="parameters"))
    assert [problem.path for problem in caught.value.problems] == ["arms.wide", "arms.deep"]
    wide, deep = caught.value.problems
    assert "to within half a percent" in wide.expected and wide.hint == "model.d_mlp: the arm sets it"
    assert deep.hint.startswith("model.d_mlp = 1 comes nearest, and is off by +")


def test_a_plan_matches_all_arms_and_says_by_what(tmp_path):
    arms = {"W_o": {}, "rank 3": {"model.head_output": {"kind": "factorized", "rank": 3}}}
    grid = {"model.context": [16, 8]}
    plan = make_plan(write_sweep(tmp_path, arms=arms, match={"budget": "flops"}, grid=grid))
    for run, baseline in zip(plan.runs[4:], plan.runs[:4], strict=True):
        assert run.settings == baseline.settings and baseline.adjusted is None
        assert run.adjusted is not None and run.config.model.d_mlp == run.adjusted.after
        assert spent(run.config, "flops") == pytest.approx(spent(baseline.config, "flops"), rel=TOLERANCE)

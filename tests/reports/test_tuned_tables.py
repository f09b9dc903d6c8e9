"""Tables of sweeps that tune, match, or have arms that vary by themselves; and when arms reach the baseline's loss."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmresearch.reports.reach import steps_to
from wmresearch.reports.table import build_table, render

RATE = "optimizer.learning_rate"


@pytest.fixture
def tuned(sweep):
    """A plan in which the arm chose 1e-3, the baseline 2e-3; runs are written by the tests."""
    folder = sweep(grid={RATE: [1e-3, 2e-3]}, seeds=(0, 1))

    def entry(arm, chosen, edges=()):
        tried = [{"values": {RATE: rate}, "loss": 2.0} for rate in (1e-3, 2e-3)]
        baseline = {RATE: 2e-3}
        return {
            "arm": arm, "settings": {}, "tried": tried, "chosen": chosen, "edges": list(edges), "at_baseline": baseline
        }  # fmt: skip

    folder.plan["tuned"] = [entry("W_o", {RATE: 2e-3}), entry("W_M rank 16", {RATE: 1e-3}, [RATE])]
    folder.write_plan()
    return folder


def fill(folder, **changes):
    for arm, rate, losses in (
        ("W_o", 2e-3, (1.9, 1.8)), ("W_M rank 16", 1e-3, (1.7, 1.75)), ("W_M rank 16", 2e-3, (2.1, 2.3))
    ):  # fmt: skip
        for seed, loss in enumerate(losses):
            folder.run(arm, seed, loss, at={RATE: rate}, **changes)


def test_rows_are_at_the_chosen_values_and_paired_by_seed_across_rates(tuned):
    fill(tuned)
    base, rank = tuned.table()["rows"]
    assert tuned.table()["loss"] == "test_loss"
    assert (base["settings"], rank["settings"]) == ({RATE: 2e-3}, {RATE: 1e-3})
    assert rank["delta"]["n"] == 2 and rank["delta"]["mean"] == pytest.approx((1.7 - 1.9 + 1.75 - 1.8) / 2)
    assert rank["tuned"]["at_baseline"]["mean"] == pytest.approx(2.2 + 0.01)
    assert base["tuned"]["at_baseline"]["mean"] == pytest.approx(base["test_loss"]["mean"])
    assert rank["flags"] == ["best learning_rate at the edge"] and base["flags"] == []


def test_without_a_test_split_the_validation_loss_is_compared_and_that_is_said(tuned):
    fill(tuned, test_loss=None)
    assert tuned.table()["loss"] == "validation_loss"
    text = render(build_table(tuned.path))
    assert "The corpus has no test split" in text
    assert text.index("validation loss") < text.index("at that of")


def test_an_arm_without_runs_to_report_has_a_row_that_says_why(tuned):
    tuned.plan["tuned"][1] |= {"chosen": None, "edges": []}
    tuned.plan["runs"][2]["role"] = "tune"
    tuned.write_plan()
    fill(tuned)
    row = tuned.table()["rows"][1]
    assert (row["arm"], row["planned"], row["flags"]) == ("W_M rank 16", 0, ["not tuned yet"])
    assert row["delta"]["n"] == 0 and tuned.table()["manifest"]["comparisons"] == 1
    assert "not tuned yet" in render(build_table(tuned.path))


def test_an_arm_that_varies_by_itself_is_compared_with_the_baseline_at_what_both_have(sweep):
    folder = sweep(grid={"model.context": [16, 32]}, seeds=(0, 1))
    runs = folder.plan["runs"]
    for number, run in enumerate([run for run in runs if run["arm"] != "W_o"]):
        run["settings"] = run["settings"] | {"model.dropout": 0.1}
        again = dict(run, run_id=f"{100 + number:012x}", settings=run["settings"] | {"model.dropout": 0.2})
        runs.append(again)
    folder.write_plan()
    losses = {16: 2.0, 32: 1.0}
    for run in runs:
        context, dropout = run["settings"]["model.context"], run["settings"].get("model.dropout", 0)
        folder.run(run["arm"], run["seed"], losses[context] + dropout + run["seed"], at=run["settings"])
    rows = [row for row in folder.table()["rows"] if row["arm"] != "W_o"]
    assert [row["delta"]["mean"] for row in rows] == pytest.approx([0.1, 0.1, 0.2, 0.2])
    assert [(row["settings"]["model.context"], row["settings"]["model.dropout"]) for row in rows] == [
        (16, 0.1), (32, 0.1), (16, 0.2), (32, 0.2),
    ]  # fmt: skip
    header, _, first, *_ = render(build_table(folder.path)).splitlines()
    assert "context" in header and "dropout" in header and "–" in first, "the baseline has no dropout of its own"


def test_what_an_arm_was_matched_by_stands_below(sweep):
    folder = sweep()
    for run in folder.plan["runs"][3:]:
        run["adjusted"] = {"key": "model.d_mlp", "before": 512, "after": 640, "budget": "parameters", "off": -0.0012}
    folder.write_plan()
    folder.fill()
    text = render(build_table(folder.path))
    note = "Matched to W_o: W_M rank 16 by model.d_mlp = 640 in place of 512 (parameters −0.12%)."
    assert note in text.replace("\\", "")
    assert folder.table()["rows"][1]["adjusted"]["after"] == 640
    assert "adjusted_after" in render(build_table(folder.path), "csv")


@given(st.lists(st.floats(0.5, 5), min_size=1, max_size=6), st.floats(0.5, 5))
def test_the_loss_at_the_step_of_reaching_is_the_target(losses, target):
    curve = [(10 * (index + 1), loss) for index, loss in enumerate(losses)]
    step = steps_to(target, curve)
    if step is None:
        assert min(losses) > target
        return
    before = [loss for at, loss in curve if at < step]
    assert all(loss > target for loss in before)
    last, reached = next((pair for pair in itertools.pairwise(curve) if pair[1][0] >= step), (None, curve[0]))
    if last is None or step <= curve[0][0]:
        assert step == 10 and losses[0] <= target
    else:
        share = (step - last[0]) / (reached[0] - last[0])
        assert last[1] + share * (reached[1] - last[1]) == pytest.approx(target)


def reaching(sweep, curves):
    folder = sweep(seeds=(0, 1))
    folder.plan["reach"] = True
    folder.write_plan()
    for (arm, seed), losses in curves.items():
        path = folder.run(arm, seed, losses[-1], step=30, training_flops=3000.0, flops_per_token=50.0)
        lines = [{"step": 10 * (i + 1), "validation_loss": loss} for i, loss in enumerate(losses)]
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


CURVES = {
    ("W_o", 0): [4, 3, 2], ("W_o", 1): [5, 4, 3], ("W_M rank 16", 0): [3, 1, 0.5], ("W_M rank 16", 1): [4, 2, 1],
}  # fmt: skip


def test_steps_and_flops_to_the_baselines_final_loss_are_means_over_pairs(sweep):
    base, rank = reaching(sweep, CURVES).table()["rows"]
    assert base["reach"] == {"n": 2, "reached": 2, "steps": 30, "flops": 3000}
    assert rank["reach"] == {"n": 2, "reached": 2, "steps": 15, "flops": 1500}


def test_a_pair_that_does_not_reach_it_leaves_a_dash(sweep):
    folder = reaching(sweep, CURVES | {("W_M rank 16", 1): [4, 3.5, 3.2]})
    assert folder.table()["rows"][1]["reach"] == {"n": 2, "reached": 1, "steps": None, "flops": None}
    row = render(build_table(folder.path)).splitlines()[3]
    assert row.count("–") == 2


def test_flops_to_reach_count_each_step_with_the_model_that_it_had(sweep):
    folder = reaching(sweep, CURVES)
    for seed in (0, 1):
        path = folder.path / folder.planned("W_M rank 16", seed)["run_id"]
        (path / "config.yaml").write_text("data: {batch_size: 2}\nmodel: {context: 1}\n")
        (path / "ranks.jsonl").write_text(json.dumps({"step": 10, "flops_per_token": 50.0}) + "\n")
    reach = folder.table()["rows"][1]["reach"]
    # 3000 = 2 tokens · (10 steps · 50 + … ): the first ten cost (3000 / 2 − 50 · 20) / 10 = 50 a token
    assert reach["flops"] == pytest.approx(2 * 50 * 15)
    for seed in (0, 1):
        path = folder.path / folder.planned("W_M rank 16", seed)["run_id"]
        (path / "ranks.jsonl").write_text(json.dumps({"step": 10, "flops_per_token": 30.0}) + "\n")
    assert folder.table()["rows"][1]["reach"]["flops"] == pytest.approx(2 * (90 * 10 + 30 * 5))

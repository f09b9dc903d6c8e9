import math
import time

import numpy as np
import pytest
from scipy import stats

from tests.reports.test_rendering import markdown_cells
from wmresearch.reports.table import build_table, render

NO_DELTA = dict.fromkeys(["mean", "low", "high", "p", "p_holm", "within", "resolvable"])
"""Of a difference: nothing but n is known."""


def test_the_json_has_exactly_the_promised_keys(sweep):
    folder = sweep()
    folder.fill()
    table = folder.table()
    assert list(table) == ["sweep", "baseline", "loss", "margin", "rows", "manifest"]
    assert (table["sweep"], table["baseline"]) == ("quickstart", "W_o")
    promised = """arm settings n planned finished diverged failed flags learning_rate
        validation_loss test_loss bits_per_byte delta parameters
        head_output_parameters head_output_nonzeros total_rank flops_per_token training_flops saves_compute
        tokens_per_second adjusted tuned reach tasks mark"""
    for row in table["rows"]:
        assert list(row) == promised.split()
        for key in ("validation_loss", "test_loss", "bits_per_byte"):
            assert list(row[key]) == ["mean", "low", "high", "sd"]
    assert table["rows"][0]["delta"] is None
    assert list(table["rows"][1]["delta"]) == ["n", "mean", "low", "high", "p", "p_holm", "within", "resolvable"]


def test_statistics_are_scipys(sweep):
    folder = sweep()
    folder.fill()
    base, rank = folder.table()["rows"]
    for row, losses in ((base, folder.BASE), (rank, folder.RANK)):
        values = list(losses.values())
        low, high = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
        nats = {"validation_loss": (1, 0), "test_loss": (1, 0.01), "bits_per_byte": (1 / math.log(2), 0)}
        for key, (scale, shift) in nats.items():
            expected = {
                "mean": np.mean(values) * scale + shift,
                "low": low * scale + shift,
                "high": high * scale + shift,
                "sd": np.std(values, ddof=1) * scale,
            }
            assert row[key] == pytest.approx(expected, rel=1e-10)
    expected = stats.ttest_rel(list(folder.RANK.values()), list(folder.BASE.values()))
    low, high = expected.confidence_interval(0.95)
    mean = np.mean(list(folder.RANK.values())) - np.mean(list(folder.BASE.values()))
    p = expected.pvalue
    found = rank["delta"]
    assert found.pop("within") is None, "the sweep states no margin"
    sd = np.std(np.array(list(folder.RANK.values())) - np.array(list(folder.BASE.values())), ddof=1)
    shift, critical = found.pop("resolvable") * math.sqrt(3) / sd, stats.t.ppf(0.975, 2)
    assert stats.nct.sf(critical, 2, shift) + stats.nct.cdf(-critical, 2, shift) == pytest.approx(0.8)
    assert found == pytest.approx({"n": 3, "mean": mean, "low": low, "high": high, "p": p, "p_holm": p}, rel=1e-9)


def test_a_margin_that_the_sweep_states_is_tested(sweep):
    folder = sweep()
    folder.plan["margin"] = 0.05
    folder.write_plan()
    folder.fill()
    differences = np.array(list(folder.RANK.values())) - np.array(list(folder.BASE.values()))
    sides = [
        stats.ttest_1samp(differences, edge, alternative=side).pvalue
        for edge, side in ((-0.05, "greater"), (0.05, "less"))
    ]
    assert folder.table()["rows"][1]["delta"]["within"] == pytest.approx(max(sides))
    text = render(build_table(folder.path), "md")
    cells = markdown_cells(text)
    assert cells[0][cells[0].index("p (Holm)") + 1] == "p (within 0.05)"
    assert "the margin that the sweep states" in text and "with a chance of 80 %" in text


def test_rows_follow_the_plan_and_are_compared_at_the_same_setting(sweep):
    folder = sweep(grid={"optimizer.learning_rate": [1e-3, 2e-3], "model.context": [64]})
    for offset, rate in ((0.0, 1e-3), (0.5, 2e-3)):
        for arm, losses in (("W_M rank 16", folder.RANK), ("W_o", folder.BASE)):
            for seed, loss in losses.items():
                folder.run(arm, seed, loss + offset, at={"optimizer.learning_rate": rate})
    rows = folder.table()["rows"]
    assert [(row["arm"], row["settings"]["optimizer.learning_rate"]) for row in rows] == [
        ("W_o", 1e-3),
        ("W_o", 2e-3),
        ("W_M rank 16", 1e-3),
        ("W_M rank 16", 2e-3),
    ]
    assert rows[2]["settings"] == {"optimizer.learning_rate": 1e-3, "model.context": 64}
    assert [row["learning_rate"] for row in rows] == [1e-3, 2e-3, 1e-3, 2e-3]
    assert rows[2]["delta"]["mean"] == pytest.approx(rows[3]["delta"]["mean"])  # the offset is the same in both arms
    assert rows[3]["delta"]["p_holm"] == pytest.approx(2 * rows[3]["delta"]["p"])


def test_deltas_pair_by_seed_and_not_by_order(sweep):
    folder = sweep()
    folder.fill()
    before = folder.table()["rows"][1]["delta"]
    runs = folder.plan["runs"]
    folder.plan["runs"] = runs[:3] + runs[:2:-1]
    folder.write_plan()
    assert folder.table()["rows"][1]["delta"] == pytest.approx(before)


def test_holms_family_is_every_planned_comparison(sweep):
    folder = sweep(arms=("W_o", "a", "b", "c", "d"))
    folder.fill({"W_o": folder.BASE, "a": folder.RANK})  # b, c, d have not started
    delta = folder.table()["rows"][1]["delta"]
    assert delta["p_holm"] == pytest.approx(min(1, 4 * delta["p"]))
    folder.run("b", 0, math.nan, state="diverged")
    for seed in (1, 2):
        folder.run("b", seed, folder.RANK[seed])
    table = folder.table()
    assert table["rows"][1]["delta"] == delta
    assert table["manifest"]["comparisons"] == 4


def test_a_row_with_a_diverged_seed_gets_no_p(sweep):
    folder = sweep(seeds=(0, 1, 2, 3))
    folder.fill()
    folder.run("W_o", 3, 1.91)
    folder.run("W_M rank 16", 3, None, state="diverged", reason="loss is NaN at step 120")
    row = folder.table()["rows"][1]
    assert (row["n"], row["planned"], row["finished"], row["diverged"], row["failed"]) == (3, 4, 3, 1, 0)
    assert row["flags"] == ["diverged"]
    assert row["delta"]["n"] == 3
    assert row["delta"]["low"] is not None
    assert row["delta"]["p"] is row["delta"]["p_holm"] is None
    assert "Not counted of W_M rank 16" in folder.notes()
    assert "seed 3 diverged (loss is NaN at step 120)" in folder.notes()


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_finished_run_without_a_finite_loss_has_diverged(sweep, loss):
    folder = sweep()
    folder.fill()
    folder.run("W_M rank 16", 1, loss)
    row = folder.table()["rows"][1]
    assert (row["finished"], row["diverged"], row["flags"]) == (2, 1, ["diverged"])
    assert row["validation_loss"]["mean"] == pytest.approx((folder.RANK[0] + folder.RANK[2]) / 2)
    assert row["delta"]["p"] is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_other_numbers_that_are_not_finite_are_missing_ones(sweep, bad):
    folder = sweep()
    keys = ("test_loss", "bits_per_byte", "learning_rate", "flops_per_token", "tokens_per_second")
    folder.fill(**dict.fromkeys(keys, bad))
    row = folder.table()["rows"][1]
    assert row["test_loss"] == row["bits_per_byte"] == dict.fromkeys(("mean", "low", "high", "sd"))
    assert row["learning_rate"] is row["flops_per_token"] is row["tokens_per_second"] is row["saves_compute"] is None


def test_failed_and_unfinished_runs_are_counted_apart(sweep):
    folder = sweep(seeds=range(6))
    folder.fill()
    folder.run("W_M rank 16", 3, None, state="failed", reason="out of memory")
    folder.run("W_M rank 16", 4, 2.5, state="running")
    row = folder.table()["rows"][1]
    assert (row["planned"], row["n"], row["finished"], row["failed"], row["diverged"]) == (6, 3, 3, 1, 0)
    assert row["flags"] == ["failed", "incomplete"]
    assert row["delta"]["p"] is not None
    assert "seed 3 failed (out of memory); seed 4 running; seed 5 not started" in folder.notes()


def test_unpaired_seeds_are_left_out_of_the_difference_only(sweep):
    folder = sweep()
    folder.fill()
    folder.run("W_o", 1, 1.93, state="preempted")
    base, rank = folder.table()["rows"]
    assert (base["n"], rank["n"], rank["delta"]["n"]) == (2, 3, 2)
    assert rank["flags"] == ["unpaired"]
    expected = stats.ttest_rel([folder.RANK[0], folder.RANK[2]], [folder.BASE[0], folder.BASE[2]])
    assert rank["delta"]["p"] == pytest.approx(expected.pvalue)
    assert rank["validation_loss"]["mean"] == pytest.approx(np.mean(list(folder.RANK.values())))
    assert "(2 pairs)" in render(build_table(folder.path))


def test_a_diverged_baseline_is_said_in_the_rows_compared_with_it(sweep):
    folder = sweep()
    folder.fill()
    folder.run("W_o", 1, None, state="diverged")
    assert folder.table()["rows"][1]["flags"] == ["baseline diverged", "unpaired"]


def test_without_any_baseline_run_there_is_no_difference(sweep):
    folder = sweep()
    folder.fill({"W_M rank 16": folder.RANK})
    row = folder.table()["rows"][1]
    assert row["delta"] == NO_DELTA | {"n": 0}
    assert row["saves_compute"] is None
    folder.plan["runs"] = folder.plan["runs"][3:]  # not even planned
    folder.write_plan()
    assert folder.table()["rows"][0]["delta"]["n"] == 0


def test_one_seed_has_a_mean_and_no_interval(sweep):
    folder = sweep(seeds=[7])
    folder.run("W_o", 7, 1.9)
    folder.run("W_M rank 16", 7, 1.85)
    row = folder.table()["rows"][1]
    assert row["validation_loss"] == {"mean": 1.85, "low": None, "high": None, "sd": None}
    assert row["delta"] == NO_DELTA | {"n": 1, "mean": pytest.approx(-0.05)}


def test_nothing_finished_is_a_table_of_nulls(sweep):
    folder = sweep()
    for row in folder.table()["rows"]:
        assert (row["n"], row["planned"], row["validation_loss"]["mean"]) == (0, 3, None)
        assert row["flags"] == ["incomplete"]
    assert "seeds 0, 1, 2 not started" in folder.notes()


def test_identical_arms_have_no_spread_and_no_p(sweep):
    folder = sweep()
    folder.fill({"W_o": folder.BASE, "W_M rank 16": folder.BASE})
    row = folder.table()["rows"][1]
    assert row["delta"] == NO_DELTA | {"n": 3, "mean": 0.0, "low": 0.0, "high": 0.0}
    assert row["flags"] == ["no spread"]


def test_saving_compute_is_fewer_flops_than_the_baseline_at_that_setting(sweep):
    folder = sweep(arms=("W_o", "same", "less", "more"))
    for arm, flops in (("W_o", 5e6), ("same", 5e6), ("less", 4.9e6), ("more", 5_100_000)):
        folder.fill({arm: folder.BASE}, flops_per_token=flops)
    assert [row["saves_compute"] for row in folder.table()["rows"]] == [False, False, True, False]


def test_speed_is_the_median(sweep):
    folder = sweep()
    for seed, speed in ((0, 100.0), (1, 90000.0), (2, 120.0)):
        folder.run("W_o", seed, tokens_per_second=speed)
    assert folder.table()["rows"][0]["tokens_per_second"] == 120.0


def test_values_that_should_be_one_and_are_not_are_left_out_and_flagged(sweep):
    folder = sweep()
    folder.fill()
    folder.run("W_M rank 16", 1, folder.RANK[1], flops_per_token=6e6, step=200)
    row = folder.table()["rows"][1]
    assert row["flops_per_token"] is row["saves_compute"] is None
    assert row["flags"] == ["mixed steps", "mixed FLOPs"]


def test_a_test_loss_of_some_seeds_only_is_not_averaged(sweep):
    folder = sweep()
    folder.fill()
    folder.run("W_M rank 16", 1, folder.RANK[1], test_loss=None)
    row = folder.table()["rows"][1]
    assert row["test_loss"]["mean"] is None
    assert row["flags"] == ["test loss incomplete"]


TASKS = {"recall_accuracy": 0.5, "induction_accuracy": 0.9, "induction_gain": 2.0}


def test_recall_and_induction_are_shown_where_runs_know_them(sweep):
    folder = sweep()
    folder.fill()
    assert "recall" not in render(build_table(folder.path))
    for seed, loss in folder.RANK.items():
        folder.run("W_M rank 16", seed, loss, **(TASKS | {"recall_accuracy": 0.5 + seed / 10}))
    baseline, row = folder.table()["rows"]
    assert baseline["tasks"] is None
    assert row["tasks"]["recall"]["mean"] == pytest.approx(0.6) and row["tasks"]["gain"]["mean"] == 2.0
    header, *cells = markdown_cells(render(build_table(folder.path)))
    at = header.index("recall")
    assert header[at : at + 3] == ["recall", "induction", "gain"]
    assert [line[at : at + 3] for line in cells] == [["–"] * 3, ["0.60 ± 0.25", "0.9000 ± 0", "2.0000 ± 0"]]


def test_scores_of_some_seeds_only_are_not_averaged(sweep):
    folder = sweep()
    folder.fill()
    folder.run("W_M rank 16", 1, folder.RANK[1], **(TASKS | {"recall_accuracy": None}))
    row = folder.table()["rows"][1]
    assert {row["tasks"][name]["mean"] for name in ("recall", "induction", "gain")} == {None}
    assert row["flags"] == ["induction accuracy incomplete"]
    assert "recall" not in render(build_table(folder.path))


def test_a_thousand_runs_take_seconds(sweep):
    folder = sweep(arms=["W_o", *(f"arm {i}" for i in range(39))], seeds=range(25))
    for index, run in enumerate(folder.plan["runs"]):
        folder.run(run["arm"], run["seed"], 2 + math.sin(index) / 100)
    start = time.perf_counter()
    table = build_table(folder.path)
    for form in ("md", "csv", "tex", "json"):
        render(table, form)
    assert time.perf_counter() - start < 5
    assert sum(row.n for row in table.rows) == 1000


def test_masked_dense_rows_say_that_they_save_no_compute_and_non_zeros_have_a_column(sweep):
    folder = sweep()
    folder.fill({"W_o": folder.BASE}, head_output_nonzeros=131072, masked_dense=False)
    folder.fill({"W_M rank 16": folder.RANK}, head_output_nonzeros=13107, masked_dense=True)
    base, sparse = folder.table()["rows"]
    assert "masked dense: saves compute: no" in sparse["flags"] and sparse["saves_compute"] is False
    assert not any("masked dense" in flag for flag in base["flags"])
    assert [row["head_output_nonzeros"] for row in (base, sparse)] == [131072, 13107]
    for form, number in (("md", "13,107"), ("tex", "& 13107 &")):
        text = render(build_table(folder.path), form)
        assert number in text and "zeros" in text and "saves compute: no" in text


def test_non_zeros_have_no_column_where_nothing_is_held_at_zero(sweep):
    folder = sweep()
    folder.fill(head_output_nonzeros=131072, masked_dense=False)
    assert "zeros" not in render(build_table(folder.path), "md")


def test_heads_that_find_their_ranks_have_costs_as_means_over_seeds(sweep):
    """Seeds differ in them, which is no fault; the total rank and the FLOPs of the whole training have columns."""
    folder = sweep()
    folder.fill({"W_o": folder.BASE}, flops_per_token=100.0, training_flops=1e9)
    for seed, loss in folder.RANK.items():
        sizes = {
            "parameters": 1000 + 9 * seed,
            "head_output_parameters": 90 + 9 * seed,
            "flops_per_token": 60.0 + 3 * seed,
        }
        folder.run("W_M rank 16", seed, loss, total_rank=24, training_flops=8e8 + 3e7 * seed, **sizes)
    base, found = folder.table()["rows"]
    assert (base["total_rank"], base["training_flops"]) == (None, 1e9)
    assert found["total_rank"] == 24 and found["flags"] == []
    assert [found[key] for key in ("parameters", "head_output_parameters")] == [1009, 99]
    assert found["flops_per_token"] == pytest.approx(63.0) and found["training_flops"] == pytest.approx(8.3e8)
    assert found["saves_compute"] is True
    text = render(build_table(folder.path), "md")
    assert "total rank" in text and "830 MFLOP" in text and "means over seeds" in text


def test_where_none_finds_its_ranks_there_is_no_column_for_them(sweep):
    folder = sweep()
    folder.fill(training_flops=1e9)
    text = render(build_table(folder.path), "md")
    assert "total rank" not in text and "means over seeds" not in text

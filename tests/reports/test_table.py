import json
import math
import time

import numpy as np
import pytest
from scipy import stats

from wmresearch.reports import ReportError, build_table, render

BASE = {0: 1.90, 1: 1.93, 2: 1.88}
RANK = {0: 1.915, 1: 1.938, 2: 1.901}


def fill(folder, losses=None, **changes):
    for arm, by_seed in (losses or {"W_o": BASE, "W_M rank 16": RANK}).items():
        for seed, loss in by_seed.items():
            folder.run(arm, seed, loss, **changes)


def as_json(folder):
    def refuse(name):
        raise AssertionError(f"{name} in JSON")

    return json.loads(render(build_table(folder.path), "json"), parse_constant=refuse)


def notes(folder):
    return "\n".join(as_json(folder)["manifest"]["notes"])


def test_the_json_has_exactly_the_promised_keys(sweep):
    folder = sweep()
    fill(folder)
    table = as_json(folder)
    assert list(table) == ["sweep", "baseline", "rows", "manifest"]
    assert (table["sweep"], table["baseline"]) == ("quickstart", "W_o")
    promised = """arm settings n planned finished diverged failed flags learning_rate
        validation_loss test_loss bits_per_byte delta parameters
        head_output_parameters flops_per_token saves_compute tokens_per_second"""
    for row in table["rows"]:
        assert list(row) == promised.split()
        for key in ("validation_loss", "test_loss", "bits_per_byte"):
            assert list(row[key]) == ["mean", "low", "high", "sd"]
    assert table["rows"][0]["delta"] is None
    assert list(table["rows"][1]["delta"]) == ["n", "mean", "low", "high", "p", "p_holm"]


def test_statistics_are_scipys(sweep):
    folder = sweep()
    fill(folder)
    base, rank = as_json(folder)["rows"]
    for row, losses in ((base, BASE), (rank, RANK)):
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
    expected = stats.ttest_rel(list(RANK.values()), list(BASE.values()))
    low, high = expected.confidence_interval(0.95)
    mean = np.mean(list(RANK.values())) - np.mean(list(BASE.values()))
    p = expected.pvalue
    assert rank["delta"] == pytest.approx(
        {"n": 3, "mean": mean, "low": low, "high": high, "p": p, "p_holm": p}, rel=1e-9
    )


def test_rows_follow_the_plan_and_are_compared_at_the_same_setting(sweep):
    folder = sweep(grid={"optimizer.learning_rate": [1e-3, 2e-3], "model.context": [64]})
    for offset, rate in ((0.0, 1e-3), (0.5, 2e-3)):
        for arm, losses in (("W_M rank 16", RANK), ("W_o", BASE)):
            for seed, loss in losses.items():
                folder.run(arm, seed, loss + offset, at={"optimizer.learning_rate": rate})
    rows = as_json(folder)["rows"]
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
    fill(folder)
    before = as_json(folder)["rows"][1]["delta"]
    runs = folder.plan["runs"]
    folder.plan["runs"] = runs[:3] + runs[:2:-1]
    folder.write_plan()
    assert as_json(folder)["rows"][1]["delta"] == pytest.approx(before)


def test_holms_family_is_every_planned_comparison(sweep):
    folder = sweep(arms=("W_o", "a", "b", "c", "d"))
    fill(folder, {"W_o": BASE, "a": RANK})  # b, c, d have not started
    delta = as_json(folder)["rows"][1]["delta"]
    assert delta["p_holm"] == pytest.approx(min(1, 4 * delta["p"]))
    folder.run("b", 0, math.nan, state="diverged")
    for seed in (1, 2):
        folder.run("b", seed, RANK[seed])
    table = as_json(folder)
    assert table["rows"][1]["delta"] == delta
    assert table["manifest"]["comparisons"] == 4


def test_a_row_with_a_diverged_seed_gets_no_p(sweep):
    folder = sweep(seeds=(0, 1, 2, 3))
    fill(folder)
    folder.run("W_o", 3, 1.91)
    folder.run("W_M rank 16", 3, None, state="diverged", reason="loss is NaN at step 120")
    row = as_json(folder)["rows"][1]
    assert (row["n"], row["planned"], row["finished"], row["diverged"], row["failed"]) == (3, 4, 3, 1, 0)
    assert row["flags"] == ["diverged"]
    assert row["delta"]["n"] == 3
    assert row["delta"]["low"] is not None
    assert row["delta"]["p"] is row["delta"]["p_holm"] is None
    assert "Not counted of W_M rank 16" in notes(folder)
    assert "seed 3 diverged (loss is NaN at step 120)" in notes(folder)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_finished_run_without_a_finite_loss_has_diverged(sweep, loss):
    folder = sweep()
    fill(folder)
    folder.run("W_M rank 16", 1, loss)
    row = as_json(folder)["rows"][1]
    assert (row["finished"], row["diverged"], row["flags"]) == (2, 1, ["diverged"])
    assert row["validation_loss"]["mean"] == pytest.approx((RANK[0] + RANK[2]) / 2)
    assert row["delta"]["p"] is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_other_numbers_that_are_not_finite_are_missing_ones(sweep, bad):
    folder = sweep()
    keys = ("test_loss", "bits_per_byte", "learning_rate", "flops_per_token", "tokens_per_second")
    fill(folder, **dict.fromkeys(keys, bad))
    row = as_json(folder)["rows"][1]
    assert row["test_loss"] == row["bits_per_byte"] == dict.fromkeys(("mean", "low", "high", "sd"))
    assert row["learning_rate"] is row["flops_per_token"] is row["tokens_per_second"] is row["saves_compute"] is None


def test_failed_and_unfinished_runs_are_counted_apart(sweep):
    folder = sweep(seeds=range(6))
    fill(folder)
    folder.run("W_M rank 16", 3, None, state="failed", reason="out of memory")
    folder.run("W_M rank 16", 4, 2.5, state="running")
    row = as_json(folder)["rows"][1]
    assert (row["planned"], row["n"], row["finished"], row["failed"], row["diverged"]) == (6, 3, 3, 1, 0)
    assert row["flags"] == ["failed", "incomplete"]
    assert row["delta"]["p"] is not None
    assert "seed 3 failed (out of memory); seed 4 running; seed 5 not started" in notes(folder)


def test_unpaired_seeds_are_left_out_of_the_difference_only(sweep):
    folder = sweep()
    fill(folder)
    folder.run("W_o", 1, 1.93, state="preempted")
    base, rank = as_json(folder)["rows"]
    assert (base["n"], rank["n"], rank["delta"]["n"]) == (2, 3, 2)
    assert rank["flags"] == ["unpaired"]
    expected = stats.ttest_rel([RANK[0], RANK[2]], [BASE[0], BASE[2]])
    assert rank["delta"]["p"] == pytest.approx(expected.pvalue)
    assert rank["validation_loss"]["mean"] == pytest.approx(np.mean(list(RANK.values())))
    assert "(2 pairs)" in render(build_table(folder.path))


def test_a_diverged_baseline_is_said_in_the_rows_compared_with_it(sweep):
    folder = sweep()
    fill(folder)
    folder.run("W_o", 1, None, state="diverged")
    assert as_json(folder)["rows"][1]["flags"] == ["baseline diverged", "unpaired"]


def test_without_any_baseline_run_there_is_no_difference(sweep):
    folder = sweep()
    fill(folder, {"W_M rank 16": RANK})
    row = as_json(folder)["rows"][1]
    assert row["delta"] == {"n": 0, "mean": None, "low": None, "high": None, "p": None, "p_holm": None}
    assert row["saves_compute"] is None
    folder.plan["runs"] = folder.plan["runs"][3:]  # not even planned
    folder.write_plan()
    assert as_json(folder)["rows"][0]["delta"]["n"] == 0


def test_one_seed_has_a_mean_and_no_interval(sweep):
    folder = sweep(seeds=[7])
    folder.run("W_o", 7, 1.9)
    folder.run("W_M rank 16", 7, 1.85)
    row = as_json(folder)["rows"][1]
    assert row["validation_loss"] == {"mean": 1.85, "low": None, "high": None, "sd": None}
    assert row["delta"] == {"n": 1, "mean": pytest.approx(-0.05), "low": None, "high": None, "p": None, "p_holm": None}


def test_nothing_finished_is_a_table_of_nulls(sweep):
    folder = sweep()
    for row in as_json(folder)["rows"]:
        assert (row["n"], row["planned"], row["validation_loss"]["mean"]) == (0, 3, None)
        assert row["flags"] == ["incomplete"]
    assert "seeds 0, 1, 2 not started" in notes(folder)


def test_identical_arms_have_no_spread_and_no_p(sweep):
    folder = sweep()
    fill(folder, {"W_o": BASE, "W_M rank 16": BASE})
    row = as_json(folder)["rows"][1]
    assert row["delta"] == {"n": 3, "mean": 0.0, "low": 0.0, "high": 0.0, "p": None, "p_holm": None}
    assert row["flags"] == ["no spread"]


def test_saving_compute_is_fewer_flops_than_the_baseline_at_that_setting(sweep):
    folder = sweep(arms=("W_o", "same", "less", "more"))
    for arm, flops in (("W_o", 5e6), ("same", 5e6), ("less", 4.9e6), ("more", 5_100_000)):
        fill(folder, {arm: BASE}, flops_per_token=flops)
    assert [row["saves_compute"] for row in as_json(folder)["rows"]] == [False, False, True, False]


def test_speed_is_the_median(sweep):
    folder = sweep()
    for seed, speed in ((0, 100.0), (1, 90000.0), (2, 120.0)):
        folder.run("W_o", seed, tokens_per_second=speed)
    assert as_json(folder)["rows"][0]["tokens_per_second"] == 120.0


def test_values_that_should_be_one_and_are_not_are_left_out_and_flagged(sweep):
    folder = sweep()
    fill(folder)
    folder.run("W_M rank 16", 1, RANK[1], flops_per_token=6e6, step=200)
    row = as_json(folder)["rows"][1]
    assert row["flops_per_token"] is row["saves_compute"] is None
    assert row["flags"] == ["mixed steps", "mixed FLOPs"]


def test_a_test_loss_of_some_seeds_only_is_not_averaged(sweep):
    folder = sweep()
    fill(folder)
    folder.run("W_M rank 16", 1, RANK[1], test_loss=None)
    row = as_json(folder)["rows"][1]
    assert row["test_loss"]["mean"] is None
    assert row["flags"] == ["test loss incomplete"]


# what must not get into the means


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"run_id": "ffffffffffff"}, 'run_id is "ffffffffffff"'),
        ({"seed": 9}, "seed is 9, the plan says 1"),
        ({"role": "tune"}, 'role is "tune"'),
        ({"settings": {"optimizer.learning_rate": 9e-3}}, "settings.optimizer.learning_rate is 0.009"),
        ({"validation_loss": None}, "finished, but without a validation_loss"),
        ({"validation_loss": "1.9"}, "validation_loss: Input should be a valid number"),
        ({"state": None}, "state: Input should be a valid string"),
    ],
)
def test_a_summary_that_contradicts_the_plan_is_not_counted(sweep, change, said):
    folder = sweep()
    fill(folder)
    folder.run("W_M rank 16", 1, 99.0, **change)
    row = as_json(folder)["rows"][1]
    assert (row["finished"], row["flags"]) == (2, ["incomplete"])
    assert row["validation_loss"]["mean"] == pytest.approx((RANK[0] + RANK[2]) / 2)
    assert f"seed 1 unusable (summary.json: {said}" in notes(folder)


@pytest.mark.parametrize("text", ["", '{"run_id": "000', "[]", "null", "\x00\x00", "[" * 100_000])
def test_a_damaged_summary_is_not_counted(sweep, text):
    folder = sweep()
    fill(folder)
    path = folder.run("W_M rank 16", 1)
    (path / "summary.json").write_text(text)
    assert as_json(folder)["rows"][1]["finished"] == 2
    assert "seed 1 unusable" in notes(folder)


def test_a_copied_run_folder_counts_once(sweep):
    folder = sweep()
    fill(folder)
    before = as_json(folder)["rows"]
    folder.run("W_M rank 16", 1, 99.0, folder="copy of run")
    folder.run("W_M rank 16", 1, 99.0, run_id="abcabcabcabc", folder="abcabcabcabc")  # the seed run twice
    folder.run("W_M rank 16", 1, 99.0, run_id="dddddddddddd", folder="dddddddddddd", seed=17)  # an extra seed
    (folder.path / "wandb").mkdir()
    assert as_json(folder)["rows"] == before
    assert "Not in the plan, ignored: 3 runs (abcabcabcabc, copy of run, dddddddddddd)." in notes(folder)


def test_a_run_keeps_its_result_when_sweep_or_arm_are_renamed(sweep):
    folder = sweep()
    fill(folder)
    folder.run("W_M rank 16", 1, RANK[1], sweep="earlier name", arm="rank16")
    row = as_json(folder)["rows"][1]
    assert row["finished"] == 3
    assert "Runs of 'W_M rank 16' were made as 'rank16'." in notes(folder)


def test_a_summary_of_another_sweep_under_a_planned_id_must_agree_in_what_changes_the_result(sweep):
    folder = sweep()
    fill(folder)
    folder.run("W_M rank 16", 1, 99.0, sweep="other", arm="other", settings={"optimizer.learning_rate": 1.0})
    assert as_json(folder)["rows"][1]["finished"] == 2


def test_two_arms_that_share_runs_are_said_to(sweep):
    folder = sweep()
    for other, run in zip(folder.plan["runs"][3:], folder.plan["runs"][:3], strict=True):
        other["run_id"] = run["run_id"]
    folder.write_plan()
    fill(folder, {"W_o": BASE})
    row = as_json(folder)["rows"][1]
    assert row["finished"] == 3
    assert row["flags"] == ["no spread", "same runs as W_o"]


def test_tuning_runs_are_no_rows_and_no_strangers(sweep):
    folder = sweep()
    folder.plan["runs"].append({**folder.plan["runs"][0], "run_id": "eeeeeeeeeeee", "seed": 100, "role": "tune"})
    folder.write_plan()
    fill(folder)
    folder.run("W_o", 100, 99.0, role="tune")
    assert as_json(folder)["rows"][0]["planned"] == 3
    assert "ignored" not in notes(folder)


# refusals


def refusal(path):
    with pytest.raises(ReportError) as caught:
        build_table(path)
    (problem,) = caught.value.problems
    assert problem.source
    assert problem.value or ", found " in problem.expected
    assert problem.expected
    assert problem.hint
    return str(caught.value)


@pytest.mark.parametrize("where", ["summary", "manifest"])
def test_corpora_are_not_mixed(sweep, where):
    folder = sweep()
    fill(folder)
    digest = {"corpus_digest": "decade" * 8}
    folder.run("W_M rank 16", 2, 2.0, **(digest if where == "summary" else {"manifest": digest}))
    text = refusal(folder.path)
    assert "c0ffeec0ffee" in text
    assert "decadedecade in 1 runs (000000000005)" in text


def test_what_is_not_in_the_table_may_have_read_another_corpus(sweep):
    folder = sweep()
    fill(folder)
    folder.run("W_o", 0, folder="elsewhere", corpus_digest="decade" * 8)
    assert as_json(folder)["manifest"]["corpus_digest"] == "c0ffee" * 8


def test_a_directory_without_a_plan(tmp_path, sweep):
    assert "no such directory" in refusal(tmp_path / "nowhere")
    assert "no such file" in refusal(tmp_path)
    folder = sweep()
    assert f"give the sweep's, {folder.path}" in refusal(folder.run("W_o", 0))


def test_a_plan_that_cannot_be_used(sweep):
    folder = sweep()
    path = folder.path / "sweep.json"
    good = path.read_text()
    path.write_text(good[:100])
    assert "half-written" in refusal(folder.path)
    path.write_text("{}")
    assert "Field required" in refusal(folder.path)
    path.write_text(good.replace('"baseline": "W_o"', '"baseline": "W_O"'))
    assert "the arm 'W_O' among them" in refusal(folder.path)


def test_a_plan_that_names_a_seed_or_a_run_twice_in_a_row(sweep):
    folder = sweep()
    folder.plan["runs"][1]["seed"] = 0
    folder.write_plan()
    assert "W_o, seed 0 twice" in refusal(folder.path)
    folder = sweep(name="other")
    folder.plan["runs"][1]["run_id"] = folder.plan["runs"][0]["run_id"]
    folder.write_plan()
    assert "run 000000000000 twice in the row of 'W_o'" in refusal(folder.path)


# what the runs were made from


def test_the_manifest_says_what_the_table_was_made_from(sweep):
    folder = sweep()
    fill(folder)
    made = as_json(folder)["manifest"]
    assert made["runs"] == {"planned": 6, "finished": 6, "diverged": 0, "failed": 0}
    assert made["corpus"] == ["stdlib/small"]
    assert made["commits"] == ["0123456789abcdef0123456789abcdef01234567"]
    assert made["packages"] == {"flax": ["0.12.8"], "jax": ["0.10.2"], "numpy": ["2.4.6"]}
    assert (made["python"], made["devices"], made["dirty"], made["xla_flags"]) == (["3.11.7"], ["cpu"], False, [])
    assert made["notes"] == []


@pytest.mark.parametrize(
    ("change", "flag", "said"),
    [
        ({"commit": "f" * 40}, "mixed commits", "Mixed commits: 0123456789ab, ffffffffffff."),
        ({"dirty": True}, "mixed commits", "0123456789ab with uncommitted changes"),
        ({"packages": {"jax": "0.12.0", "flax": "0.12.8"}}, "mixed packages", "jax 0.10.2 and 0.12.0"),
        ({"python": "3.13.0"}, "mixed Python versions", "3.11.7, 3.13.0"),
        ({"device": {"kind": "H200"}}, "mixed devices", 'cpu, {"kind": "H200"}'),
        ({"xla_flags": "--xla_x=1"}, "mixed XLA flags", "none, --xla_x=1"),
    ],
)
def test_mixed_environments_are_flagged_where_they_matter(sweep, change, flag, said):
    folder = sweep(arms=("W_o", "mixed", "clean"))
    fill(folder, {"W_o": BASE, "mixed": RANK, "clean": RANK})
    folder.run("mixed", 1, RANK[1], manifest=change)
    base, mixed, clean = as_json(folder)["rows"]
    assert base["flags"] == clean["flags"] == []
    assert mixed["flags"] == [flag]
    assert said in notes(folder)


def test_an_unknown_origin_is_said(sweep):
    folder = sweep()
    fill(folder, corpus_digest=None, manifest={"commit": None, "dirty": None, "packages": None, "corpus_digest": None})
    (folder.run("W_o", 1, BASE[1]) / "manifest.json").unlink()
    table = as_json(folder)
    assert "Code unknown (no usable manifest, or no commit in it) for 6 runs" in notes(folder)
    assert "Corpus unknown (no digest) for 5 runs" in notes(folder)
    assert table["rows"][0]["flags"] == []


def test_a_manifest_of_another_run_is_not_believed(sweep):
    folder = sweep()
    fill(folder)
    folder.run("W_o", 1, BASE[1], manifest={"run_id": "ffffffffffff", "commit": "f" * 40, "corpus_digest": "x"})
    assert "Code unknown (no usable manifest, or no commit in it) for 1 run (000000000001)." in notes(folder)


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

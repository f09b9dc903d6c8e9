"""Which runs may be counted, and which directories are refused."""

import pytest

from wmresearch.reports.table import ReportError, build_table


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
    folder.fill()
    folder.run("W_M rank 16", 1, 99.0, **change)
    row = folder.table()["rows"][1]
    assert (row["finished"], row["flags"]) == (2, ["incomplete"])
    assert row["validation_loss"]["mean"] == pytest.approx((folder.RANK[0] + folder.RANK[2]) / 2)
    assert f"seed 1 unusable (summary.json: {said}" in folder.notes()


@pytest.mark.parametrize("text", ["", '{"run_id": "000', "[]", "null", "\x00\x00", "[" * 100_000])
def test_a_damaged_summary_is_not_counted(sweep, text):
    folder = sweep()
    folder.fill()
    path = folder.run("W_M rank 16", 1)
    (path / "summary.json").write_text(text)
    assert folder.table()["rows"][1]["finished"] == 2
    assert "seed 1 unusable" in folder.notes()


def test_a_copied_run_folder_counts_once(sweep):
    folder = sweep()
    folder.fill()
    before = folder.table()["rows"]
    folder.run("W_M rank 16", 1, 99.0, folder="copy of run")
    folder.run("W_M rank 16", 1, 99.0, run_id="abcabcabcabc", folder="abcabcabcabc")  # the seed run twice
    folder.run("W_M rank 16", 1, 99.0, run_id="dddddddddddd", folder="dddddddddddd", seed=17)  # an extra seed
    (folder.path / "wandb").mkdir()
    assert folder.table()["rows"] == before
    assert "Not in the plan, ignored: 3 runs (abcabcabcabc, copy of run, dddddddddddd)." in folder.notes()


def test_a_run_keeps_its_result_when_sweep_or_arm_are_renamed(sweep):
    folder = sweep()
    folder.fill()
    folder.run("W_M rank 16", 1, folder.RANK[1], sweep="earlier name", arm="rank16")
    row = folder.table()["rows"][1]
    assert row["finished"] == 3
    assert "Runs of 'W_M rank 16' were made as 'rank16'." in folder.notes()


def test_a_summary_of_another_sweep_under_a_planned_id_must_agree_in_what_changes_the_result(sweep):
    folder = sweep()
    folder.fill()
    folder.run("W_M rank 16", 1, 99.0, sweep="other", arm="other", settings={"optimizer.learning_rate": 1.0})
    assert folder.table()["rows"][1]["finished"] == 2


def test_two_arms_that_share_runs_are_said_to(sweep):
    folder = sweep()
    for other, run in zip(folder.plan["runs"][3:], folder.plan["runs"][:3], strict=True):
        other["run_id"] = run["run_id"]
    folder.write_plan()
    folder.fill({"W_o": folder.BASE})
    row = folder.table()["rows"][1]
    assert row["finished"] == 3
    assert row["flags"] == ["no spread", "same runs as W_o"]


def test_tuning_runs_are_no_rows_and_no_strangers(sweep):
    folder = sweep()
    folder.plan["runs"].append({**folder.plan["runs"][0], "run_id": "eeeeeeeeeeee", "seed": 100, "role": "tune"})
    folder.write_plan()
    folder.fill()
    folder.run("W_o", 100, 99.0, role="tune")
    assert folder.table()["rows"][0]["planned"] == 3
    assert "ignored" not in folder.notes()


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
    folder.fill()
    digest = {"corpus_digest": "decade" * 8}
    folder.run("W_M rank 16", 2, 2.0, **(digest if where == "summary" else {"manifest": digest}))
    text = refusal(folder.path)
    assert "c0ffeec0ffee" in text
    assert "decadedecade in 1 runs (000000000005)" in text


def test_what_is_not_in_the_table_may_have_read_another_corpus(sweep):
    folder = sweep()
    folder.fill()
    folder.run("W_o", 0, folder="elsewhere", corpus_digest="decade" * 8)
    assert folder.table()["manifest"]["corpus_digest"] == "c0ffee" * 8


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

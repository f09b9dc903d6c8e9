"""What is asked of a table: its columns, the order of its rows, several sweeps at once; and the marks of the lowest."""

import csv
import io
import json

import pytest
from scipy import stats

from tests.reports.conftest import SweepFolder
from tests.reports.test_rendering import markdown_cells
from wmresearch.config import yaml_text
from wmresearch.reports.table import ReportError, View, build_table, render

RATE = "optimizer.learning_rate"


def cells(table):
    return markdown_cells(render(table))


def notes(table):
    return render(table).partition("\n\n")[2]


def column(table, header):
    head, *rows = cells(table)
    return [row[head.index(header)] for row in rows]


@pytest.fixture
def grid(sweep):
    """Two arms at two rates."""
    folder = sweep(grid={RATE: [1e-3, 2e-3]})
    for rate, offset in ((1e-3, 0.0), (2e-3, 0.4)):
        for arm, losses in (("W_o", folder.BASE), ("W_M rank 16", folder.RANK)):
            for seed, loss in losses.items():
                run = folder.run(
                    arm, seed, loss + offset, at={RATE: rate}, train_loss=loss - seed, wall_seconds=rate * 1e4
                )
                rank = {"rank": 16} if arm != "W_o" else {}
                config = {"seed": seed, "model": {"d_mlp": 64, "head_output": {"kind": "standard", **rank}}}
                (run / "config.yaml").write_text(yaml_text.write(config))
                ranks = [[1.0, 2.0], [3.0, 4.0 + seed]]
                lines = [{"step": 0, "stable_rank": [[0.0]]}, {"step": 300, "stable_rank": ranks}]
                (run / "diagnostics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
                (run / "metrics.jsonl").write_text(json.dumps({"step": 300, "gradient_norm": 7.0}) + "\n")
    return folder


def test_columns_are_those_that_were_asked_for_in_that_order(grid):
    names = ("arm", "parameters", RATE, "validation_loss")
    head, *rows = cells(build_table(grid.path, view=View(names)))
    assert head == ["arm", "parameters", "learning_rate", "validation loss"]
    assert [row[:3] for row in rows] == [
        [arm, "827,392", rate] for arm in ("W_o", "W_M rank 16") for rate in ("0.001", "0.002")
    ]
    said = notes(build_table(grid.path, view=View(names)))
    assert "Parameters:" in said and "Tokens/s" not in said and "Δ:" not in said


def test_what_the_runs_files_know_makes_columns(grid):
    names = (
        "arm",
        "model.head_output.rank",
        "model.d_mlp",
        "wall_seconds",
        "stable_rank",
        "gradient_norm",
        "train_loss",
    )
    table = build_table(grid.path, view=View(names))
    assert column(table, "model.head_output.rank") == ["–", "–", "16", "16"]
    assert column(table, "model.d_mlp") == ["64"] * 4
    assert column(table, "wall seconds") == ["10.0000 ± 0", "20.0000 ± 0"] * 2
    assert column(table, "gradient norm")[0] == "7.0000 ± 0"
    means = [10 / 4, 11 / 4, 12 / 4]
    low, high = stats.t.interval(0.95, 2, loc=2.75, scale=stats.sem(means))
    found = table.to_dict()["rows"][0]["extra"]
    assert (found["stable_rank"]["low"], found["stable_rank"]["high"]) == pytest.approx((low, high))
    assert "stable_rank, gradient_norm, train_loss: what the finished runs' own files say" in notes(table)
    record = next(csv.DictReader(io.StringIO(render(table, "csv"))))
    assert record["model.d_mlp"] == "64" and float(record["stable_rank_mean"]) == pytest.approx(2.75)
    assert float(record["validation_loss_mean"]) == pytest.approx(sum(grid.BASE.values()) / 3)


def test_a_number_that_a_finished_run_lacks_is_no_mean_over_the_others(grid):
    run = grid.path / grid.planned("W_o", 1, **{RATE: 1e-3})["run_id"]
    (run / "metrics.jsonl").unlink()
    assert column(build_table(grid.path, view=View(("arm", "gradient_norm"))), "gradient norm")[0] == "–"


def test_names_that_are_nothing_are_refused_all_at_once(grid):
    with pytest.raises(ReportError) as error:
        build_table(grid.path, view=View(("arm", "modell.d_mlp", "stable_rnk"), sort="-loss"))
    said = str(error.value)
    assert said.count("wm table: column = ") == 3
    assert "did you mean 'model.d_mlp'?" in said and "did you mean 'stable_rank'?" in said


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("validation_loss", [0, 2, 1, 3]),
        ("-validation_loss", [3, 1, 2, 0]),
        (f"-{RATE}", [1, 3, 0, 2]),
        ("arm", [2, 3, 0, 1]),
        ("delta", [3, 2, 0, 1]),
        ("-model.head_output.rank", [2, 3, 0, 1]),
    ],
)
def test_rows_are_sorted_and_what_is_unknown_comes_last(grid, sort, order):
    plain = [(row["arm"], row["settings"]) for row in grid.table()["rows"]]
    rows = build_table(grid.path, view=View(sort=sort)).rows
    if sort == "delta":  # both differences are equal but for rounding
        rows = sorted(
            rows, key=lambda row: (row.delta is None, -row.settings[RATE] if row.delta else row.settings[RATE])
        )
    assert [(row.arm, row.settings) for row in rows] == [plain[index] for index in order]


def test_rows_of_a_group_stand_together_between_rules(grid):
    table = build_table(grid.path, view=View(sort="-validation_loss", group=RATE))
    assert [row.settings[RATE] for row in table.rows] == [2e-3, 2e-3, 1e-3, 1e-3]
    lines = render(table).splitlines()
    assert set(lines[4]) == {"|", " "} and lines[5].startswith("| W_M rank 16")
    assert render(table, "tex").count(r"\midrule") == 2


def test_the_lowest_mean_is_marked_and_what_the_seeds_do_not_tell_apart(sweep):
    folder = sweep(arms=["W_o", "low", "near", "far", "lucky"])
    losses = {
        "W_o": [2.0, 2.1, 2.2],
        "low": [1.8, 1.9, 2.0],
        "near": [1.7, 1.95, 2.1],
        "far": [1.85, 1.96, 2.04],
        "lucky": [1.1, 1.2],
    }
    for arm, values in losses.items():
        for seed, loss in enumerate(values):
            folder.run(arm, seed, loss)
    folder.run("lucky", 2, None, state="diverged")
    assert stats.ttest_rel(losses["near"], losses["low"]).pvalue > 0.05
    assert stats.ttest_rel(losses["far"], losses["low"]).pvalue < 0.05
    assert [row["mark"] for row in folder.table()["rows"]] == [None, "lowest", "not told apart", None, None]
    shown = column(build_table(folder.path), "validation loss")
    assert [cell[-1] in "†‡" for cell in shown] == [False, True, True, False, False]
    assert "† lowest mean validation loss; ‡ not told apart from it" in notes(build_table(folder.path))
    assert r"\textsuperscript{\dag}" in render(build_table(folder.path), "tex")


def test_one_row_or_one_seed_has_no_lowest(sweep):
    folder = sweep(arms=["W_o"])
    folder.fill({"W_o": folder.BASE})
    assert [row["mark"] for row in folder.table()["rows"]] == [None]
    single = sweep(seeds=[0], name="single")
    single.fill({"W_o": {0: 1.9}, "W_M rank 16": {0: 1.8}})
    assert [row["mark"] for row in single.table()["rows"]] == [None, None]


@pytest.fixture
def another(sweep, tmp_path):
    """Beside `quickstart` a sweep with other arms, whose p is larger."""
    folder = SweepFolder(tmp_path / "more", ["W_o", "dense"], [0, 1, 2], {RATE: [3e-3]}, "W_o", "more")
    folder.plan["runs"] = [run | {"run_id": f"a{run['run_id'][1:]}"} for run in folder.plan["runs"]]
    folder.write_plan()
    folder.fill({"W_o": folder.BASE, "dense": {0: 1.80, 1: 1.99, 2: 1.80}})
    return folder


def test_several_sweeps_make_one_table_each_row_against_its_own_baseline(sweep, another):
    folder = sweep()
    folder.fill({"W_o": {seed: loss + 1 for seed, loss in folder.BASE.items()}, "W_M rank 16": folder.RANK})
    table = build_table(folder.path, another.path)
    data = json.loads(render(table, "json"))
    assert (data["sweep"], data["baseline"]) == ("quickstart + more", "W_o")
    assert [(row["sweep"], row["arm"]) for row in data["rows"]] == [
        ("quickstart", "W_o"), ("quickstart", "W_M rank 16"), ("more", "W_o"), ("more", "dense")
    ]  # fmt: skip
    alone = [folder.table()["rows"], another.table()["rows"]]
    for found, expected in zip(data["rows"], alone[0] + alone[1], strict=True):
        assert found["validation_loss"] == expected["validation_loss"]
        assert (found["delta"] or {}).get("mean") == (expected["delta"] or {}).get("mean")
    first, second = (data["rows"][index]["delta"] for index in (1, 3))
    assert first["p_holm"] == pytest.approx(2 * first["p"]) and first["p"] < second["p"] == second["p_holm"]
    assert cells(table)[0][:2] == ["sweep", "arm"]
    said = notes(table)
    assert "over the 2 planned comparisons" in said and "Sweeps quickstart + more: 12 of 12 runs finished" in said
    assert render(table, "csv").startswith("sweep,arm,")


def test_sweeps_with_other_baselines_or_keys_say_so(sweep, another):
    folder = sweep(baseline="W_M rank 16", grid={"model.d_mlp": [64]})
    folder.fill()
    table = build_table(folder.path, another.path)
    assert cells(table)[0][2:4] == ["d_mlp", "learning_rate"] and "Δ to baseline" in cells(table)[0]
    assert "minus that of its sweep's baseline" in notes(table)
    assert column(table, "d_mlp") == ["64", "64", "–", "–"]


def test_sweeps_of_two_texts_or_two_losses_are_refused(sweep, another):
    folder = sweep()
    folder.fill(corpus_digest="dead" * 12, manifest={"corpus_digest": "dead" * 12})
    with pytest.raises(
        ReportError, match=r"(?s)dead.*losses on different texts cannot be compared: make a table of each"
    ):
        build_table(folder.path, another.path)
    folder.fill()
    rate = {RATE: 3e-3}
    folder.plan["tuned"] = [
        {"arm": arm, "settings": {}, "tried": [{"values": rate, "loss": 2.0}], "chosen": rate, "at_baseline": rate}
        for arm in folder.plan["arms"]
    ]
    folder.write_plan()
    with pytest.raises(ReportError, match="compared by one kind of loss"):
        build_table(folder.path, another.path)


def test_the_manifest_s_id_is_that_of_its_runs_and_stands_below_the_table(sweep):
    folder = sweep()
    folder.fill()
    first = folder.table()["manifest"]["id"]
    assert first == folder.table()["manifest"]["id"] and f"manifest {first}." in notes(build_table(folder.path))
    folder.run("W_o", 0, None, state="failed")
    assert folder.table()["manifest"]["id"] != first

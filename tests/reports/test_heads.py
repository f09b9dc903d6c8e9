"""The table of heads against scipy and the runs' own files, of a sweep that was really run."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
from scipy import stats

from tests.sweeps.mini import SEEDS, mini_sweep, wm
from wmresearch.reports.heads import build_heads, render_heads
from wmresearch.sweeps.store import read_plan
from wmresearch.training.run_directory import RunDirectory


@pytest.fixture(scope="module")
def runs():
    return mini_sweep() / "runs"


def measured(runs, arm):
    """Seed → the lines of its diagnostics."""
    planned = [run for run in read_plan(runs)["runs"] if run["arm"] == arm]
    return {run["seed"]: RunDirectory(runs / run["run_id"]).diagnostics() for run in planned}


def test_figures_are_means_over_heads_layers_and_seeds_of_the_last_step(runs):
    _, rows = build_heads(runs)
    assert [row.arm for row in rows] == ["W_o", "W_M rank 3", "decay 1"]
    for row in rows:
        lines = measured(runs, row.arm)
        assert row.n == row.planned == len(SEEDS) == len(lines)
        for name in ("effective_rank", "frobenius_norm", "overlap"):
            values = [np.mean(found[-1][name]) for found in lines.values()]
            low, high = stats.t.interval(0.95, 1, loc=np.mean(values), scale=stats.sem(values))
            estimate = row.figures[name]
            np.testing.assert_allclose([estimate.mean, estimate.low, estimate.high], [np.mean(values), low, high])
        assert row.at_start == pytest.approx(np.mean([found[0]["effective_rank"] for found in lines.values()]))


def test_differences_are_paired_by_seed_and_corrected_over_the_rows(runs):
    _, (base, rank, decay) = build_heads(runs)
    assert base.delta is base.loss_delta is base.p_holm is None
    lines = {row.arm: measured(runs, row.arm) for row in (base, rank, decay)}
    means = {arm: [np.mean(found[s][-1]["effective_rank"]) for s in SEEDS] for arm, found in lines.items()}
    raw = []
    for row in (rank, decay):
        differences = np.subtract(means[row.arm], means["W_o"])
        assert row.delta.mean == pytest.approx(differences.mean())
        raw.append(stats.ttest_rel(means[row.arm], means["W_o"]).pvalue)
        assert row.delta.p == pytest.approx(raw[-1])
    assert min(rank.p_holm, decay.p_holm) == pytest.approx(min(1, 2 * min(raw)))


def test_the_formats_agree_and_the_command_prints_them(runs, capfd):
    data = json.loads(render_heads(runs, "json"))
    table = list(csv.DictReader(io.StringIO(render_heads(runs, "csv"))))
    for plain, line in zip(data["rows"], table, strict=True):
        assert float(line["effective_rank_mean"]) == plain["figures"]["effective_rank"]["mean"]
        assert line["arm"] == plain["arm"]
    code, out, _ = wm(capfd, "table", runs, "--heads")
    assert code == 0 and out == render_heads(runs, "md")
    assert out.count("| W_M rank 3 ") == 1 and "‖M‖" in out
    tex = render_heads(runs, "tex")
    assert r"\toprule" in tex and r"\label{tab:mini-heads}" in tex


def test_runs_without_diagnostics_count_as_missing(runs, tmp_path):
    shutil.copytree(runs, tmp_path / "runs")
    one = next(run["run_id"] for run in read_plan(runs)["runs"] if run["arm"] == "W_M rank 3")
    (tmp_path / "runs" / one / "diagnostics.jsonl").unlink()
    _, rows = build_heads(tmp_path / "runs")
    assert [(row.n, row.planned) for row in rows] == [(2, 2), (1, 2), (2, 2)]
    assert rows[1].delta.n == 1 and rows[1].figures["effective_rank"].low is None

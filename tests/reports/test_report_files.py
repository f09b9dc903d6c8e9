"""`wm report` on whatever a sweep's directory may hold, and the figures' numbers."""

import json
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from tests.sweeps.mini import wm
from wmresearch.reports import figures_sweep
from wmresearch.reports.curves import Curve, band, read_curves, smoothed, thinned
from wmresearch.reports.evidence import read_evidence
from wmresearch.reports.figure_parts import style
from wmresearch.reports.figures_costs import loss_against_cost, pareto
from wmresearch.reports.figures_sweep import FIGURES, draw_figures
from wmresearch.reports.page import build_page
from wmresearch.reports.page_data import page_data
from wmresearch.reports.page_files import write_report
from wmresearch.reports.records import ReportError
from wmresearch.training.run_directory import RunDirectory


def log(run: Path, losses, metric="validation_loss"):
    lines = [{"step": 10 * (number + 1), metric: loss} for number, loss in enumerate(losses)]
    with (run / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def no_figures(monkeypatch):
    """They take seconds, and are looked at elsewhere."""
    monkeypatch.setattr(figures_sweep, "FIGURES", {})


def words(page: Path) -> str:
    return re.sub(r"<[^>]+>", " ", page.read_text().split("<script")[0])


def test_it_writes_a_page_and_figures_and_says_what_it_could_not_draw(report):
    _, page, err = report
    missing = set(re.findall("^not drawn: (.*?) \\(", err, re.M))
    drawn = {path.stem for path in (page.parent / "figures").glob("*.svg")}
    assert {title for name, (title, _) in FIGURES.items() if name not in drawn} == missing
    assert drawn >= {"learning_curves", "loss_by_parameters", "spectra_curves", "spectra_heat", "effective_rank"}
    assert drawn >= {"overlap_matrix"}
    for name in drawn:
        svg = ET.parse(page.parent / "figures" / f"{name}.svg").getroot()
        assert float(svg.get("width").removesuffix("pt")) == pytest.approx(3.4 * 72)
        picture = Image.open(page.parent / "figures" / f"{name}.png")
        grey = np.asarray(picture.convert("L"), float)
        assert grey.std() > 5
    assert "mini" in words(page)


def test_a_figure_that_cannot_be_drawn_any_more_goes_away(sweep, tmp_path, no_figures):
    folder = sweep()
    (tmp_path / "figures").mkdir()
    for name in ("truncation.svg", "own.svg"):
        (tmp_path / "figures" / name).write_text("old")
    figures_sweep.FIGURES["truncation"] = FIGURES["truncation"]
    written = write_report(folder.path, tmp_path / "page.html")
    assert [figure.name for figure in written.missing] == ["truncation"]
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["own.svg"]


@pytest.mark.parametrize("what", ["nothing", "empty plan", "one seed", "unfinished", "diverged", "damaged", "nulls"])
def test_a_page_of_whatever_is_there(sweep, tmp_path, what, monkeypatch):
    keep = {"learning_curves", "loss_by_parameters", "spectra_heat", "effective_rank", "learning_rate_sensitivity"}
    monkeypatch.setattr(figures_sweep, "FIGURES", {name: FIGURES[name] for name in keep})
    folder = sweep()
    if what == "empty plan":
        folder.plan["runs"] = []
        folder.write_plan()
    elif what == "one seed":
        log(folder.run("W_o", 0, 1.9), [3.0, 2.5, 1.9])
    elif what == "unfinished":
        for seed, losses in enumerate(([3.0, 2.0], [3.1], [])):
            log(folder.run("W_o", seed, None, state="running", step=10 * len(losses), validation_loss=None), losses)
    elif what == "diverged":
        log(folder.run("W_o", 0, math.nan, state="diverged", reason="not finite"), [3.0, 4.0, math.nan])
        folder.run("W_o", 1, math.inf)
    elif what == "damaged":
        run = folder.run("W_o", 0, 1.9)
        (run / "metrics.jsonl").write_bytes(
            b'{"step": 1, "validation_loss": 3.0}\n\xff{"st\n[1]\n{"step": "x"}\n{"step": 2'
        )
        (run / "diagnostics.jsonl").write_text('{"step": 1, "effective_rank": [[1], 2]}\n{"step": 2}\n')
        (run / "spectra").mkdir()
        (run / "spectra" / "00000001.npz").write_bytes(b"no archive")
        (run / "config.yaml").write_text("a: [")
        folder.run("W_o", 1, 1.9, run_id="other")
    elif what == "nulls":
        log(folder.run("W_o", 0, 1.9, parameters=None, learning_rate=None, test_loss=None), [None, 2.0, None])
    written = write_report(folder.path, tmp_path / "page.html")
    text = words(written.page)
    assert "quickstart" in text
    assert not re.search(r"\b(nan|None|inf)\b", text.replace("loss of nan", "").replace("loss of inf", ""))
    data = page_data(read_evidence(folder.path), [])
    json.dumps(data["groups"])
    if what == "one seed":
        assert "1.9000" in text
        assert "one seed: no interval" in text
    if what in ("nothing", "unfinished"):
        assert written.goes_on
        assert "No run has finished" in text
    if what == "diverged":
        assert "2 diverged" in text


def test_it_refuses_what_is_no_sweep(tmp_path, capfd):
    code, out, err = wm(capfd, "report", tmp_path / "none")
    assert (code, out) == (2, "")
    assert "no such directory" in err


def test_it_says_why_a_page_cannot_be_written(sweep, tmp_path, no_figures):
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="a file that can be written"):
        write_report(sweep().path, tmp_path / "file" / "page.html")


def test_watching_ends_when_all_runs_have(sweep, tmp_path, capfd, no_figures):
    folder = sweep(seeds=(0,))
    folder.run("W_o", 0, 1.9)
    running = write_report(folder.path, tmp_path / "page.html", refresh=7)
    assert running.goes_on
    assert 'data-refresh="7"' in running.page.read_text()
    folder.run("W_M rank 16", 0, 1.8)
    code, out, _ = wm(capfd, "report", folder.path, "--watch")
    assert (code, out) == (0, f"{folder.path}/report/index.html\n")
    text = (folder.path / "report" / "index.html").read_text()
    assert 'data-refresh=""' in text
    assert "2 of 2 runs finished" in text


def test_the_summary_says_what_the_table_says(sweep, tmp_path, no_figures):
    folder = sweep(arms=("W_o", "W_M rank 16", "worse"), seeds=(0, 1, 2))
    worse = {seed: loss + 0.2 + 0.0001 * seed for seed, loss in folder.BASE.items()}
    folder.fill({"W_o": folder.BASE, "W_M rank 16": folder.RANK, "worse": worse})
    text = " ".join(words(write_report(folder.path, tmp_path / "page.html").page).split())
    by_arm = {row["arm"]: row for row in folder.table()["rows"]}
    found = re.search(r"Loss higher than the baseline&#x27;s .*?: worse \(\+([\d.]+) ± ([\d.]+)\)", text)
    delta = by_arm["worse"]["delta"]
    assert [float(group) for group in found.groups()] == pytest.approx(
        [delta["mean"], (delta["high"] - delta["low"]) / 2], rel=0.05
    )
    assert "could be shown for W_M rank 16; that is not a proof" in text
    assert f"lowest mean of the other rows is that of W_M rank 16: {np.mean(list(folder.RANK.values())):.3f}" in text


def test_configs_are_compared_with_the_baselines(report):
    page = words(report[1])
    text = " ".join(page[page.index("What each arm has") :].split())
    assert "decay 1 optimizer.weight_decay 0.0 → 1.0" in text or re.search(r"weight_decay [\d.]+ → 1.0", text)
    assert "model.head_output.rank – → 3" in text


def test_drawn_curves_are_thinned_and_keep_their_values(sweep, monkeypatch):
    rng = np.random.default_rng(0)
    folder = sweep(arms=("W_o",), seeds=(0, 1))
    for seed in (0, 1):
        log(folder.run("W_o", seed, 1.9), rng.normal(size=1500 - 300 * seed).tolist())
    evidence = read_evidence(folder.path)
    data = page_data(evidence, [])
    assert data["drawn"] == {"logged": 1500, "kept": 500}
    kept = thinned(1500, 500)
    assert (kept[0], kept[-1], len(kept)) == (0, 1499, 500)
    for run, shown in zip(evidence.groups[0].runs, data["groups"][0]["runs"], strict=True):
        number, packed = shown["curves"]["validation_loss"]
        steps = unpacked(data["steps"][number])
        logged = dict(zip(run.curves["validation_loss"].steps, run.curves["validation_loss"].values, strict=True))
        assert [logged[step] for step in steps] == unpacked(packed).tolist()
        assert steps[-1] == max(logged)


def unpacked(packed):
    import base64

    [(kind, text)] = packed.items()
    return np.frombuffer(base64.b64decode(text), f"<{kind}").astype("i8" if kind == "i4" else "f8")


def test_a_hundred_runs_fit_into_five_megabytes(sweep):
    rng = np.random.default_rng(0)
    folder = sweep(arms=[f"arm {number}" for number in range(20)], seeds=range(5), baseline="arm 0")
    for arm in folder.plan["arms"]:
        for seed in range(5):
            run = folder.run(arm, seed, 2.0)
            columns = {name: rng.normal(size=600) for name in ("train_loss", "gradient_norm", "validation_loss")}
            lines = [{"step": i, **{name: float(of[i]) for name, of in columns.items()}} for i in range(600)]
            (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    evidence = read_evidence(folder.path)
    assert len(build_page(evidence, []).encode()) < 4_500_000  # figures add less than the rest


def test_a_band_is_the_mean_and_its_t_interval():
    rng = np.random.default_rng(1)
    curves = [Curve(np.arange(0, 30, step), rng.normal(size=len(range(0, 30, step)))) for step in (2, 3, 2)]
    found = band(curves)
    assert found.steps.tolist() == [0, 6, 12, 18, 24]
    for place, step in enumerate(found.steps):
        values = [curve.values[curve.steps == step][0] for curve in curves]
        low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
        assert (found.low[place], found.high[place]) == pytest.approx((low, high))
    assert np.isnan(band(curves[:1]).low).all()


@pytest.mark.parametrize("window", [1, 2, 5, 99])
def test_smoothing_is_the_mean_over_neighbours(window):
    values = np.random.default_rng(2).normal(size=17)
    found = smoothed(Curve(np.arange(17), values), window).values
    for at in range(17):
        reach = min(window // 2, at, 16 - at)
        assert found[at] == pytest.approx(values[at - reach : at + reach + 1].mean())


def test_curves_read_what_a_run_directory_wrote(tmp_path):
    run = RunDirectory(tmp_path)
    run.append_metrics(1, {"a": 0.1, "b": 2})
    run.append_metrics(2, {"a": math.nan})
    run.append_metrics(3, {"a": 1e-300})
    found = read_curves(tmp_path / "metrics.jsonl")
    assert {name: (c.steps.tolist(), c.values.tolist()) for name, c in found.items()} == {
        "a": ([1, 3], [0.1, 1e-300]),
        "b": ([1], [2.0]),
    }
    assert read_curves(tmp_path / "none.jsonl") == {}


def test_the_pareto_front():
    points = [(3, 1.0), (1, 2.0), (2, 2.0), (1, 3.0), (4, 1.0), (5, 0.5)]
    assert pareto(points) == [(1, 2.0), (3, 1.0), (5, 0.5)]


@pytest.mark.parametrize("count", [2, 30, 31])
def test_a_point_that_can_be_told_apart_is_named(count, sweep):
    arms = [f"arm {number}" for number in range(count)]
    folder = sweep(arms=arms, seeds=(0, 1), baseline="arm 0")
    for number, arm in enumerate(arms):
        for seed in (0, 1):
            folder.run(arm, seed, 2 + 0.01 * number + 0.001 * seed, parameters=1000 * (number + 1))
    with style():
        drawing = loss_against_cost(read_evidence(folder.path), "parameters")
        drawing.figure.draw_without_rendering()
    named = [text.get_text() for legend in drawing.figure.legends for text in legend.get_texts()]
    assert sorted(set(named) - {"Pareto front"}) == (sorted(arms) if count <= 30 else [])
    assert ("the table names them" in drawing.caption) == (count > 30)
    assert drawing.figure.axes[0].get_window_extent().height > drawing.figure.dpi, "inches of the panel"


def test_figures_of_found_ranks_learning_rates_and_cuts(sweep, monkeypatch):
    keep = {"rank_by_layer", "learning_rate_sensitivity", "truncation", "loss_by_total_rank"}
    monkeypatch.setattr(figures_sweep, "FIGURES", {name: FIGURES[name] for name in keep})
    folder = sweep(seeds=(0, 1), grid={"optimizer.learning_rate": [1e-3, 3e-3]})
    for number, planned in enumerate(folder.plan["runs"]):
        rank = 8 if planned["arm"] == "W_o" else 4
        run = folder.run(planned["arm"], planned["seed"], 2 + 0.01 * number, at=planned["settings"], total_rank=rank)
        (run / "ranks.jsonl").write_text(json.dumps({"step": 1, "ranks": [[rank - 1, 0], [0, 1]]}) + "\n")
        outcomes = [{"rank": r, "difference": 0.1 / r, "dropped": [], "validation_loss": 2.0} for r in (1, 2)]
        (run / "truncation.json").write_text(json.dumps({"outcomes": outcomes}))
    assert {made.name: made.missing for made in draw_figures(read_evidence(folder.path))} == dict.fromkeys(keep, "")

"""A run's spectra against numpy's SVD of the whole maps."""

import csv
import dataclasses
import io
import json

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from tests.sweeps.mini import wm
from tests.training.examples import final_state
from wmresearch.algebra.diagnostics import SpectrumStatistics
from wmresearch.config import ConfigError
from wmresearch.reports.figures import spectrum_figure, spectrum_png
from wmresearch.reports.spectrum import Spectrum, read_spectrum, read_two
from wmresearch.reports.spectrum_rendering import render, render_two


def test_figures_are_those_of_the_whole_maps(run):
    path, chosen = run
    params = final_state(path, chosen).params
    found = read_spectrum(path)
    assert found.step == 12
    for layer in range(2):
        block = params["blocks"][layer]
        own = block["attention"]["head_output"]
        for head in range(2):
            a = np.asarray(block["attention_norm"]["gain"], float)[:, None] * np.asarray(
                own["factor_a"][:, head], float
            )
            s = np.linalg.svd(a @ np.asarray(own["factor_b"][head], float), compute_uv=False)
            p = s[s > 1e-9] / s.sum()
            at = (layer, head)
            np.testing.assert_allclose(found.trained.singular_values[at], s[:5], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(found.trained.effective_rank[at], np.exp(-(p * np.log(p)).sum()), rtol=1e-4)
            assert found.trained.r95[at] == 1 + np.argmax(np.cumsum(s**2) >= 0.95 * (s**2).sum())
            np.testing.assert_allclose(found.trained.frobenius_norm[at], np.sqrt((s**2).sum()), rtol=1e-5)
    assert not np.allclose(found.initial.singular_values, found.trained.singular_values)


def test_forms_tell_the_same(run):
    path, _ = run
    found = read_spectrum(path)
    heads = json.loads(render(found, "json"))["heads"]
    rows = list(csv.DictReader(io.StringIO(render(found, "csv"))))
    lines = render(found, "md").splitlines()[2:6]
    assert [(row["layer"], row["head"]) for row in rows] == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    for row, head, line in zip(rows, heads, lines, strict=True):
        assert float(row["effective rank"]) == pytest.approx(head["effective_rank"], abs=0.006)
        assert float(row["‖M‖_* at start"]) == pytest.approx(head["initial"]["nuclear_norm"], rel=1e-3)
        assert [cell.strip() for cell in line.strip("| ").split("|")] == list(row.values())
        assert len(head["singular_values"]) == 5


def test_an_earlier_checkpoint_and_one_that_is_not_there(run, tmp_path):
    path, _ = run
    earlier, last = read_spectrum(path, 6), read_spectrum(path)
    assert (earlier.step, last.step) == (6, 12)
    assert not np.allclose(earlier.trained.singular_values, last.trained.singular_values)
    with pytest.raises(ConfigError, match=r"(?s)step 7.*a step with a checkpoint: 6, 12"):
        read_spectrum(path, 7)
    with pytest.raises(ConfigError, match="the directory of a run"):
        read_spectrum(tmp_path)


def test_two_runs_stand_side_by_side_in_every_form(run, other_run):
    both = first, second = read_two(run[0], other_run)
    assert (first.step, second.step) == (12, 8)
    data = json.loads(render_two(first, second, "json"))
    assert data["runs"] == [{"run": str(run[0]), "step": 12}, {"run": str(other_run), "step": 8}]
    rows = list(csv.DictReader(io.StringIO(render_two(first, second, "csv"))))
    text = render_two(first, second, "md")
    lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines()[:6]]
    assert lines[0][:6] == ["layer", "head", "effective rank A", "effective rank B", "r95 A", "r95 B"]
    assert f"A: {run[0]} at step 12.\nB: {other_run} at step 8.\n" in text
    singles = [json.loads(render(spectrum, "json"))["heads"] for spectrum in both]
    for head, row, line, one, two in zip(data["heads"], rows, lines[2:], *singles, strict=True):
        place = {key: one[key] for key in ("layer", "head")}
        assert place | {"runs": [{k: v for k, v in own.items() if k not in place} for own in (one, two)]} == head
        assert list(row.values()) == line
        for path, own in zip((run[0], other_run), (one, two), strict=True):
            assert float(row[f"stable rank of {path}"]) == pytest.approx(own["stable_rank"], abs=0.006)
            assert float(row[f"‖M‖_F of {path}"]) == pytest.approx(own["frobenius_norm"], rel=1e-3)


def test_runs_that_cannot_be_compared_are_refused(run, other_run, run_of_four_heads, tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)= step 6\n *expected a step with a checkpoint: 4, 8\n.*both") as error:
        read_two(run[0], other_run, 6)
    assert [problem.source for problem in error.value.problems] == [str(other_run)]
    with pytest.raises(ConfigError) as error:
        read_two(tmp_path, run[0], 7)
    assert [problem.source for problem in error.value.problems] == [str(tmp_path), str(run[0])]
    with pytest.raises(ConfigError, match=r"= 2 layers of 4 heads\n *expected 2 layers of 2 heads, as in "):
        read_two(run[0], run_of_four_heads)


def curves(panel):
    """Those of the heads as trained, then those before training."""
    lines = panel.get_lines()
    grey = [line for line in lines if len(set(to_rgb(line.get_color()))) == 1]
    return [line for line in lines if line not in grey], grey


def test_the_figure_shows_each_head_on_a_log_scale_with_its_start_behind(run):
    found = read_spectrum(run[0])
    panels = spectrum_figure([found]).axes
    assert [panel.get_title() for panel in panels] == ["layer 0", "layer 1"]
    for layer, panel in enumerate(panels):
        assert panel.get_yscale() == "log" and "index" in panel.get_xlabel()
        for statistics, lines in zip((found.trained, found.initial), curves(panel), strict=True):
            assert len(lines) == 2
            for head, line in enumerate(lines):
                np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 6))
                np.testing.assert_array_equal(line.get_ydata(), statistics.singular_values[layer, head])
        trained, grey = curves(panel)
        assert max(line.get_zorder() for line in grey) < min(line.get_zorder() for line in trained)
    assert "singular value" in panels[0].get_ylabel()
    legend = [text.get_text() for text in spectrum_figure([found]).legends[0].get_texts()]
    assert legend == ["head 0", "head 1", "before training"]


def test_a_figure_of_two_runs_has_a_column_each_with_a_common_scale(run, other_run):
    both = read_two(run[0], other_run)
    panels = spectrum_figure(both).axes
    assert len(panels) == 4 and len({panel.get_ylim() for panel in panels}) == 1
    for panel, (spectrum, layer) in zip(panels, [(s, n) for n in range(2) for s in both], strict=True):
        drawn = [line.get_ydata() for line in curves(panel)[0]]
        np.testing.assert_array_equal(drawn, spectrum.trained.singular_values[layer])
    assert panels[0].get_title().splitlines()[1] == "layer 0" and panels[1].get_title().endswith("step 8\nlayer 0")


def test_what_is_zero_but_for_rounding_is_not_drawn_and_many_heads_have_a_colour_bar():
    draw = np.random.default_rng(0)
    values = -np.sort(-draw.uniform(1, 2, (4, 12, 6)).astype(np.float32), axis=-1)
    values[0, 3, 4:] = 1e-7
    values[1, 0] = 0
    rest = dict.fromkeys((field.name for field in dataclasses.fields(SpectrumStatistics)[1:]), values[..., 0])
    statistics = SpectrumStatistics(values, **rest)
    spectrum = Spectrum("a run with $ and _ in " + "a long name " * 9, 3, statistics, statistics)
    figure = spectrum_figure([spectrum])
    panels = figure.axes[:6]
    assert [panel.axison for panel in panels] == [True] * 4 + [False] * 2
    lengths = [[len(line.get_xdata()) for line in curves(panel)[0]] for panel in panels[:4]]
    assert lengths == [[6] * 3 + [4] + [6] * 8, [0] + [6] * 11, [6] * 12, [6] * 12]
    assert figure.axes[-1].get_ylabel() == "head"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["before training"]
    assert spectrum_png([spectrum]).startswith(b"\x89PNG")


def test_a_figure_lands_in_the_run_or_where_it_is_wanted(run, other_run, capfd, tmp_path):
    path = run[0]
    code, out, _ = wm(capfd, "spectrum", path, "--format", "png")
    assert (code, out) == (0, f"written to {path / 'spectrum.png'}\n")
    assert (path / "spectrum.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = wm(capfd, "spectrum", path, "--compare", other_run, "--out", tmp_path / "both.PNG")
    assert (code, out) == (0, f"written to {tmp_path / 'both.PNG'}\n")
    assert (tmp_path / "both.PNG").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("wishes", "file", "form"),
    [
        (("--format", "csv"), "x.txt", "csv"),
        ((), "x.json", "json"),
        ((), "x", "md"),
        (("--format", "md"), "x.csv", "md"),
    ],
)
def test_a_file_holds_what_would_be_printed(wishes, file, form, run, capfd, tmp_path):
    code, out, _ = wm(capfd, "spectrum", run[0], *wishes, "--out", tmp_path / file)
    assert (code, out) == (0, f"written to {tmp_path / file}\n")
    assert (tmp_path / file).read_text(encoding="utf-8") == render(read_spectrum(run[0]), form)


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ("--drop-heads 1,x --truncate 0", ("--drop-heads = 1,x", "--truncate = 0", "from 1 on", "2 problems")),
        ("--drop-heads 5", ("--drop-heads = 5", "at most 4, the heads of")),
        ("--truncate 3,17", ("--truncate = 17", "a rank from 1 to d_model = 16", "1 problem")),
        ("--truncate 1 --compare RUN", ("--compare", "one run at a time")),
        ("--truncate 1 --format png", ("--format = png", "md, csv or json")),
        ("--drop-heads 1 --out x.png", ("--out = x.png", "md, csv or json")),
        ("--out nowhere/x.md", ("--out = nowhere/x.md", "a folder that exists")),
        ("--out .", ("--out = .", "a file")),
        ("--compare nowhere", ("nowhere", "the directory of a run")),
    ],
)
def test_wishes_that_cannot_be_met_are_refused_and_nothing_is_written(wishes, words, run, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = wm(capfd, "spectrum", run[0], *wishes.replace("RUN", str(run[0])).split())
    assert (code, out) == (2, "")
    assert all(word in err for word in words), err
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_a_checkpoint_is_refused_and_left_as_it_is(run, tmp_path):
    (tmp_path / "config.yaml").write_bytes((run[0] / "config.yaml").read_bytes())
    with pytest.raises(ConfigError, match="a run with a checkpoint"):
        read_spectrum(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]

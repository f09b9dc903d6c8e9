import csv
import io
import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.cells import cell_len

from wmresearch.reports.table import FORMATS, build_table, render

ODD = [
    "W_o",
    "a|b",
    "_x_ *y* `z`",
    "back\\slash\\",
    "<b>&amp; $q$ ~~s~~ [l](u)",
    "幅の広い",
    "λ=0.1",
    'say "hi", twice',
    "a\nb",
]


def filled(sweep, arms=ODD, grid=None, **changes):
    folder = sweep(arms=arms, baseline=arms[0], grid=grid)
    for number, run in enumerate(folder.plan["runs"]):
        folder.run(run["arm"], run["seed"], 1.9 + 0.01 * math.sin(number * number), at=run["settings"], **changes)
    return folder


def md_lines(text):
    return [line for line in text.splitlines() if line.startswith("|")]


def markdown_cells(text):
    """What a Markdown reader shows in the table's cells."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    rows, row = [], []
    for token in tokens:
        if token.type == "tr_close":
            rows.append(row)
            row = []
        elif token.type == "inline" and token.level == 4 and token.map:
            assert all(child.type in ("text", "text_special", "softbreak") for child in token.children), token.content
            row.append("".join(child.content for child in token.children))
    return rows


def test_markdown_shows_names_literally_and_numbers_with_uncertainty(sweep):
    folder = filled(sweep)
    rows = markdown_cells(render(build_table(folder.path)))
    header, *body = rows
    losses = ["validation loss", "Δ to W_o", "p (Holm)", "test loss", "bits/byte"]
    assert header == ["arm", *losses, "parameters", "head outputs", "cost/token", "tokens/s", "seeds"]
    assert [row[0] for row in body] == [" ".join(arm.split()) for arm in ODD]
    # losses 1.9, 1.90841, 1.89243: s = .00799, t_2 = 4.303
    losses = ["1.900 ± 0.020 ‡", "baseline", "–", "1.910 ± 0.020", "2.742 ± 0.029"]
    assert body[0] == ["W_o", *losses, "827,392", "131,072", "5.10 MFLOP", "12,300", "3/3"]


def test_markdown_columns_are_aligned_in_a_terminal(sweep):
    lines = md_lines(render(build_table(filled(sweep).path)))
    assert len({cell_len(line) for line in lines}) == 1


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=12))
def test_markdown_survives_any_name(sweep, name):
    folder = sweep(arms=["base", "x" + name + "x"], seeds=[0], baseline="base")
    body = markdown_cells(render(build_table(folder.path)))[1:]
    assert [row[0] for row in body] == ["base", " ".join(("x" + name + "x").split())]


def test_ordinary_names_stay_readable(sweep):
    text = render(build_table(filled(sweep, ["W_o", "W_M rank 16"]).path))
    assert "| W_M rank 16 |" in text


def test_only_grid_keys_that_vary_have_a_column(sweep):
    grid = {
        "optimizer.learning_rate": [1e-3, 3e-3],
        "model.context": [64],
        "data.size": ["a", "b"],
        "model.size": [1, 2],
    }
    folder = filled(sweep, ["W_o"], grid)
    text = render(build_table(folder.path))
    assert markdown_cells(text)[0][:4] == ["arm", "learning_rate", "data.size", "model.size"]
    assert markdown_cells(text)[1][1:4] == ["0.001", "a", "1"]
    assert "All at model.context = 64." in text
    assert json.loads(render(build_table(folder.path), "json"))["rows"][0]["settings"]["model.context"] == 64


def test_without_a_test_split_there_is_a_dash(sweep):
    folder = filled(sweep, ["W_o", "b"], test_loss=None)
    for row in markdown_cells(render(build_table(folder.path)))[1:]:
        assert row[4] == "–"


def test_footnotes_say_how_the_numbers_came_about(sweep):
    folder = filled(sweep, ["W_o", "b", "c"])
    text = render(build_table(folder.path))
    for said in (
        "nats per token",
        "95 % t interval",
        "two-sided paired t test, Holm-corrected over the 2 planned comparisons",
        "forward and backward",
        "median over seeds, on cpu",
        "9 of 9 runs finished, corpus c0ffeec0ffee, commit 0123456789ab",
    ):
        assert said in text
    assert "flags" not in text
    folder.run("b", 1, None, state="diverged", reason="loss is NaN")
    text = render(build_table(folder.path))
    assert "A row with a diverged seed has no p" in text
    assert " 2/3 | diverged |" in text


def test_csv_carries_every_number_of_the_json(sweep):
    folder = filled(sweep, grid={"optimizer.learning_rate": [3e-3], "optimizer.betas": [[0.9, 0.99], [0.9, 0.95]]})
    table = build_table(folder.path)
    read = list(csv.DictReader(io.StringIO(render(table, "csv"))))
    rows = json.loads(render(table, "json"))["rows"]
    assert [row["arm"] for row in read] == [arm for arm in ODD for _ in range(2)]
    for got, row in zip(read, rows, strict=True):
        assert json.loads(got["optimizer.betas"]) == row["settings"]["optimizer.betas"]
        assert float(got["optimizer.learning_rate"]) == 3e-3
        assert got["saves_compute"] == json.dumps(row["saves_compute"])
        for key in ("validation_loss", "test_loss", "bits_per_byte"):
            assert {name: float(got[f"{key}_{name}"]) for name in row[key]} == row[key]
        for name in ("n", "mean", "low", "high", "p", "p_holm"):
            value = (row["delta"] or {}).get(name)
            assert got[f"delta_{name}"] == ("" if value is None else str(value))
        for name in ("planned", "finished", "parameters", "head_output_parameters"):
            assert int(got[name]) == row[name]


def test_a_plan_without_report_runs_renders_too(sweep):
    folder = sweep()
    folder.plan["runs"] = []
    folder.write_plan()
    table = build_table(folder.path)
    assert len(md_lines(render(table))) == 2
    for form in FORMATS:
        assert render(table, form).endswith("\n")


def test_an_unknown_format_is_refused(sweep):
    with pytest.raises(ValueError, match="expected one of md, csv, tex, json"):
        render(build_table(sweep().path), "html")

"""The report page of a sweep that was really run, in Chromium: what it shows is what the runs have logged."""

import json
import shutil
import statistics

import numpy as np
import pytest
from PIL import Image

from wmresearch.reports.page_files import write_report
from wmresearch.reports.table import build_table
from wmresearch.training.run_directory import RunDirectory

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None:
        pytest.skip("needs Debian's chromium")
    with api.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


class Opened:
    """A page that is ready, and what it asked for and complained of."""

    def __init__(self, browser, file, width=1280, scheme="light"):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.complaints, self.requests = [], []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message) or dialog.dismiss())
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("html[data-ready=yes]", timeout=60_000)

    def drawn(self):
        """Names of the curves in the picture."""
        return self.page.eval_on_selector("#curves-plot", "plot => plot.data.map(t => t.meta).filter(m => m != 'band')")

    def column(self, name):
        """The cells of a column of the table, from the top."""
        index = self.page.eval_on_selector_all(
            "#table thead th", "(t, name) => t.findIndex(h => h.textContent == name)", name
        )
        return self.page.eval_on_selector_all(
            f"#table tbody [data-column='{index}']", "cells => cells.map(c => c.textContent)"
        )

    def point_at(self, step):
        """Moves the mouse over a step of the curves; gives the lines of what is shown there: name, value."""
        place = """(plot, step) => {
            plot.scrollIntoView({block: "center", behavior: "instant"});
            const {left, top} = plot.getBoundingClientRect(), {xaxis, yaxis} = plot._fullLayout;
            return [left + xaxis._offset + xaxis.d2p(step), top + yaxis._offset + yaxis._length / 2];
        }"""
        x, y = self.page.eval_on_selector("#curves-plot", place, step)
        self.page.mouse.move(x - 3, y)
        self.page.mouse.move(x, y)
        self.page.wait_for_function("step => document.querySelector('#tip b')?.textContent == `step ${step}`", arg=step)
        return dict(
            self.page.eval_on_selector_all(
                "#tip tr", "rows => rows.map(r => [r.cells[1].textContent, r.cells[2].textContent])"
            )
        )


@pytest.fixture(scope="module")
def tab(browser, report):
    found = Opened(browser, report[1])
    yield found
    found.context.close()


@pytest.fixture
def opened(tab):
    """The page as it is at first: all curves, means of the validation loss."""
    tab.page.get_by_role("button", name="all", exact=True).click()
    tab.page.select_option("#mode", "mean")
    tab.page.select_option("#metric", "validation_loss")
    return tab


@pytest.fixture(scope="module")
def logged(report):
    """(arm, seed) → lines of metrics.jsonl."""
    plan = json.loads((report[0] / "sweep.json").read_text())
    return {(run["arm"], run["seed"]): RunDirectory(report[0] / run["run_id"]).metrics() for run in plan["runs"]}


def values(lines, name):
    return {line["step"]: line[name] for line in lines if name in line}


def test_the_page_asks_for_nothing_and_complains_of_nothing(opened, report):
    opened.page.wait_for_timeout(500)
    assert [url for url in opened.requests if not url.startswith("data:")] == [report[1].as_uri()]
    assert opened.complaints == []
    assert report[1].stat().st_size < 5_000_000


def test_a_click_on_a_header_sorts_the_table_and_another_turns_it_round(opened, report):
    losses = {row.arm: row.validation_loss.mean for row in build_table(report[0]).rows}
    by_loss = sorted(losses, key=losses.get)
    button = opened.page.get_by_role("button", name="validation loss")
    button.click()
    assert opened.column("arm") == by_loss
    button.focus()
    opened.page.keyboard.press("Enter")
    assert opened.column("arm") == by_loss[::-1]
    assert opened.page.locator("#table th[aria-sort]").get_attribute("aria-sort") == "descending"


def test_columns_are_chosen(opened):
    cell = opened.page.locator("#table thead th", has_text="bits/byte")
    assert cell.is_visible()
    opened.page.get_by_text("Columns", exact=True).click()
    opened.page.locator("#columns").get_by_label("bits/byte").uncheck()
    assert not cell.is_visible()
    body = opened.page.locator(f"#table tbody [data-column='{cell.get_attribute('data-column')}']")
    assert [one.is_visible() for one in body.all()] == [False] * 3


def test_a_toggle_hides_a_curve_and_a_reload_keeps_it(opened, logged):
    arms = list(dict.fromkeys(arm for arm, _ in logged))
    assert opened.drawn() == arms
    for page_state in ("clicked", "reloaded"):
        if page_state == "clicked":
            opened.page.locator("#arms").get_by_label(arms[1]).uncheck()
        else:
            opened.page.reload()
            opened.page.wait_for_selector("html[data-ready=yes]")
        opened.page.wait_for_function("document.querySelectorAll('#curves-plot .scatterlayer .js-line').length > 0")
        assert opened.drawn() == [arms[0], arms[2]]
        lines = opened.page.locator("#curves-plot .scatterlayer .trace path.js-line").count()
        assert lines == 2 + 2 * 2  # and the edges of each band


@pytest.mark.parametrize("metric", ["validation_loss", "train_loss"])
def test_hovering_shows_every_digit_that_a_run_has_logged(opened, logged, metric):
    opened.page.select_option("#metric", metric)
    opened.page.select_option("#mode", "runs")
    steps = values(logged["W_o", 0], metric)
    for step in list(steps)[1:]:
        shown = opened.point_at(step)
        assert {name: float(value) for name, value in shown.items()} == {
            f"{arm} · seed {seed}": values(lines, metric)[step] for (arm, seed), lines in logged.items()
        }


def test_hovering_over_a_mean_shows_it_with_its_interval(opened, logged):
    step = 16
    shown = opened.point_at(step)
    for arm in ("W_o", "W_M rank 3", "decay 1"):
        found = [values(logged[arm, seed], "validation_loss")[step] for seed in (0, 1)]
        half = 12.706204736 * statistics.stdev(found) / np.sqrt(2)
        mean, _, rest = shown[arm].partition(" ± ")
        assert float(mean) == pytest.approx(statistics.mean(found), rel=1e-5)
        assert float(rest.split()[0]) == pytest.approx(half, rel=0.06)
        assert rest.endswith("(2 seeds)")


def test_arrow_keys_go_from_step_to_step(opened, logged):
    opened.page.select_option("#mode", "runs")
    opened.page.locator("#curves-plot").focus()
    for key in ("Home", "ArrowRight"):
        opened.page.keyboard.press(key)
    said = opened.page.locator("#curves-said").text_content()
    steps = sorted(values(logged["W_o", 1], "validation_loss"))
    assert said.startswith(f"step {steps[1]}:")
    assert f"W_o · seed 1 {values(logged['W_o', 1], 'validation_loss')[steps[1]]!r}" in said
    opened.page.keyboard.press("Escape")
    assert not opened.page.locator("#tip").is_visible()


def test_the_slider_goes_through_the_spectra(opened, report):
    plan = json.loads((report[0] / "sweep.json").read_text())
    folder = report[0] / plan["runs"][0]["run_id"] / "spectra"
    files = sorted(folder.glob("*.npz"))
    for place, file in enumerate(files):
        opened.page.locator("#step").fill(str(place))
        assert opened.page.locator("#stepped").text_content() == str(int(file.stem))
        lines = opened.page.eval_on_selector(
            "#spectra-plot", "p => p.data.filter(t => t.meta !== undefined).map(t => t.y)"
        )
        expected = np.load(file)["singular_values"][0]
        kept = expected > 1e-5 * max(np.load(each)["singular_values"].max() for each in files)
        assert [[v is not None for v in line] for line in lines] == kept.tolist()
        assert [[v for v in line if v is not None] for line in lines] == [
            row[k].tolist() for row, k in zip(expected.astype(float), kept, strict=True)
        ]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "light"), (390, "dark")])
def test_it_fits_the_screen(browser, report, tmp_path, width, scheme):
    opened = Opened(browser, report[1], width, scheme)
    try:
        opened.page.wait_for_function("document.querySelectorAll('.plot .main-svg').length >= 9")
        opened.page.screenshot(path=tmp_path / "page.png", full_page=True)
        assert opened.page.evaluate("document.documentElement.scrollWidth") == width
        sizes = opened.page.eval_on_selector_all(".gallery img", "images => images.map(i => i.naturalWidth)")
        assert len(sizes) > 5
        assert min(sizes) > 100
        assert opened.complaints == []
    finally:
        opened.context.close()
    picture = Image.open(tmp_path / "page.png").convert("RGB")
    assert picture.width == width
    assert (sum(picture.getpixel((2, 2))) < 150) == (scheme == "dark")


NAMES = [
    "W_o",
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    "%{x} $a_b$ <b>&amp;",
    "_under",
    "É 日本",
]


def test_odd_names_are_only_text(browser, sweep, tmp_path):
    folder = sweep(arms=NAMES, seeds=(0, 1), grid={})
    for number, arm in enumerate(NAMES):
        for seed in (0, 1):
            run = folder.run(arm, seed, 2.0 + 0.01 * number + 0.001 * seed, state="finished", reason=f"{arm}")
            lines = [{"step": step, "validation_loss": 3.0 + number - 0.01 * step} for step in (1, 50, 100)]
            (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    folder.run(NAMES[1], 1, None, state="failed", reason=NAMES[2])
    page = write_report(folder.path, tmp_path / "odd.html").page
    opened = Opened(browser, page)
    try:
        assert opened.column("arm") == NAMES
        opened.page.select_option("#mode", "runs")
        shown = opened.point_at(50)
        assert f"{NAMES[2]} · seed 0" in shown
        assert NAMES[2] in opened.page.locator("#failures").text_content()
        assert opened.complaints == []
        assert [url for url in opened.requests if not url.startswith("data:")] == [page.as_uri()]
    finally:
        opened.context.close()

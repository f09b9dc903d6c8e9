"""The dashboard, by wandb-workspaces' own models, against what twenty real runs told W&B."""

import json
import shutil

import pytest
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws
from wandb_workspaces.reports.v2.internal import ReportViewspec
from wandb_workspaces.workspaces.internal import View

from tests.reports.wandb_server import environment, serving
from tests.sweeps.mini import TWENTY, start_wm, twenty_runs, wm, write_sweep
from tests.sweeps.wandb_records import last_summary, rows
from wmresearch.reports.dashboard import Place, make_dashboard, place_of
from wmresearch.reports.logged import HISTORY, SECTIONS, SUMMARY, history_names, sort, summary_names
from wmresearch.sweeps.plan import make_plan
from wmresearch.sweeps.store import read_plan, write_plan


@pytest.fixture(scope="module")
def directory():
    return twenty_runs() / "runs"


@pytest.fixture(scope="module")
def plain(directory):
    return make_dashboard(directory, place_of(directory, "team", None)).plain()


@pytest.fixture(scope="module")
def told(directory):
    """The names in W&B's rows, and in its summaries."""
    paths = [directory / run["run_id"] for run in read_plan(directory)["runs"]]
    history = {key for path in paths for row in rows(path) for key in row if key != "step"}
    pictures = {key for key in history if key.startswith("spectra.")}
    numbers = {key for path in paths for key, value in last_summary(path).items() if isinstance(value, int | float)}
    return (history - pictures) | {"spectra"}, numbers


def workspace(plain):
    return ws.Workspace._from_model(View.model_validate(plain["workspace"]))


def report(plain):
    return wr.Report._from_model(ReportViewspec.model_validate(plain["report"]))


def by_section(plain):
    """Section → panels, of the workspace and of the report."""
    grids = [block for block in report(plain).blocks if isinstance(block, wr.PanelGrid)]
    titles = [block.text for block in report(plain).blocks if isinstance(block, wr.H2)]
    return (
        {section.name: section.panels for section in workspace(plain).sections},
        {title: grid.panels for title, grid in zip(titles, grids, strict=True)},
    )


def metrics_of(panel):
    """What a panel shows: names of rows, names of summaries."""
    if isinstance(panel, wr.LinePlot):
        return {metric.name for metric in panel.y}, set()
    if isinstance(panel, wr.MediaBrowser):
        return set(panel.media_keys), set()
    if isinstance(panel, wr.BarPlot):
        return set(), {metric.name for metric in panel.metrics}
    if isinstance(panel, wr.ScatterPlot):
        return set(), {panel.x.name, panel.y.name}
    assert isinstance(panel, wr.MarkdownPanel), panel
    return set(), set()


def test_what_directories_say_is_logged_is_what_w_and_b_was_told(directory, told):
    history, numbers = told
    assert history_names(directory) == history
    assert summary_names(directory) <= numbers


def test_every_name_that_is_logged_has_one_place_in_the_list(told):
    found, without_place = sort(told[0])
    assert without_place == []
    assert sorted(name for names in found.values() for name in names) == sorted(told[0])
    assert [logged.name for logged in HISTORY if logged.main and logged not in found] == []
    assert len({logged.name for logged in HISTORY}) == len(HISTORY)


def test_no_panel_is_without_data_and_no_metric_without_a_panel(plain, told):
    for sections in by_section(plain):
        assert list(sections) == list(SECTIONS)
        shown = [metrics_of(panel) for panels in sections.values() for panel in panels]
        history, numbers = (set().union(*names) for names in zip(*shown, strict=True))
        assert history == told[0]
        assert numbers <= told[1]
        assert {logged.name for logged in SUMMARY if logged.main} <= numbers
        assert all(sections.values())


def test_each_panel_stands_in_the_section_of_its_metric(plain):
    for sections in by_section(plain):
        for section, panels in sections.items():
            for logged, names in sort(set().union(*(metrics_of(panel)[0] for panel in panels)))[0].items():
                assert logged.section == section, names


def test_curves_are_over_the_runs_own_step_and_runs_are_grouped_by_arm(plain):
    for sections in by_section(plain):
        curves = [panel for panels in sections.values() for panel in panels if isinstance(panel, wr.LinePlot)]
        assert {panel.x.name for panel in curves} == {"step"}
    settings = workspace(plain).runset_settings
    assert [(type(key).__name__, key.name) for key in settings.groupby] == [("Config", "arm")]
    assert list(settings.group_colors) == list(TWENTY)
    assert len(set(settings.group_colors.values())) == len(TWENTY)
    assert settings.filters == "Metric(\"Group\") == 'twenty' and Metric(\"JobType\") == 'report'"
    grids = [block for block in report(plain).blocks if isinstance(block, wr.PanelGrid)]
    assert all(grid.runsets[0].groupby == ["config.arm.value"] for grid in grids)
    filters = [grid.runsets[0].filters for grid in grids]
    assert filters[:-1] == [settings.filters] * (len(SECTIONS) - 1)
    assert filters[-1] == "Metric(\"Group\") == 'twenty' and SummaryMetric(\"State\") != 'finished'"


def test_the_report_has_the_table_and_says_what_failed(plain):
    texts = [block.text for block in report(plain).blocks if isinstance(block, wr.MarkdownBlock)]
    assert all(arm in texts[0] for arm in TWENTY)
    assert texts[1].count("| too fast |") == 5
    assert "not finite at step 2" in texts[1]


def without_ids(value):
    """wandb-workspaces names panels at random."""
    if isinstance(value, dict):
        return {key: without_ids(item) for key, item in value.items() if key not in ("id", "__id__", "ref")}
    return [without_ids(item) for item in value] if isinstance(value, list) else value


def test_a_dry_run_writes_the_same(capfd, directory, plain, tmp_path):
    code, out, err = wm(capfd, "dashboard", directory, "--entity", "team", "--dry-run")
    assert (code, err) == (0, "")
    kept = lambda data: {key: value for key, value in without_ids(data).items() if key != "spec"}
    assert kept(json.loads(out)["report"]) == kept(plain["report"])
    assert [
        panel.title for panels in by_section(json.loads(out))[0].values() for panel in panels if hasattr(panel, "title")
    ] == [panel.title for panels in by_section(plain)[0].values() for panel in panels if hasattr(panel, "title")]
    assert wm(capfd, "dashboard", directory, "--out", tmp_path / "d.json")[:2] == (0, "")
    assert View.model_validate(json.loads((tmp_path / "d.json").read_text())["workspace"]).project == "wmresearch"


def test_a_sweep_that_has_not_begun_has_a_dashboard_too(tmp_path):
    write_plan(tmp_path / "runs", make_plan(write_sweep(tmp_path)))
    made = make_dashboard(tmp_path / "runs", Place("", "wmresearch")).plain()
    assert [panel for panels in by_section(made)[1].values() for panel in panels] == []


def test_it_is_saved_once_and_then_renewed(directory, tmp_path):
    """By wandb's own client, to a server on this machine."""
    runs = shutil.copytree(directory, tmp_path / "runs", symlinks=True)
    (tmp_path / "home").mkdir()

    def wm_dashboard(**more):
        return ended(start_wm("dashboard", runs, env=environment(HOME=str(tmp_path / "home"), **more)))

    with serving() as server:
        said = [wm_dashboard(WANDB_BASE_URL=server.url, WANDB_API_KEY="a" * 40) for _ in range(2)]
    assert said[0] == said[1]
    code, out, err = said[0]
    assert (code, err) == (0, "")
    assert out.startswith(f"workspace: {server.url}/me/wmresearch?nw=")
    assert [(view["type"], view.get("id")) for view in server.views] == [
        ("runs", None), ("project-view", None), ("runs", "view1"), ("project-view", "view2"),
    ]  # fmt: skip
    assert {view["entityName"] for view in server.views} == {"me"}
    code, out, err = wm_dashboard()
    assert (code, out) == (1, "")
    assert "wandb login" in err and "--dry-run" in err


def ended(process):
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err

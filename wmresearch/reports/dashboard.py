"""A sweep's W&B workspace and report: the panels of `logged`, runs grouped by arm. They need wandb-workspaces."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wmresearch.config import ConfigError, Problem
from wmresearch.reports.logged import SECTIONS, SUMMARY, Logged, Section, history_names, sort, summary_names
from wmresearch.reports.table import build_table, render
from wmresearch.sweeps.store import read_plan, statuses
from wmresearch.training.files import read_json, write_json
from wmresearch.training.run_directory import RunDirectory

_COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#7F7F7F", "#999933")
"""Of arms, the baseline's first: apart for the colour-blind (Okabe and Ito), and then over again."""
_COLUMNS = (
    "config:arm.value", "config:seed.value", "summary:state", "summary:reason", "summary:test_loss",
    "summary:validation_loss", "summary:parameters", "summary:training_flops",
)  # fmt: skip
_SAVED = "dashboard.json"


@dataclass(frozen=True)
class Place:
    """Where in W&B."""

    entity: str
    project: str

    def of_user(self) -> Place:
        """Where no entity is named, the account's own; this asks the server."""
        import wandb

        return self if self.entity else Place(wandb.Api().default_entity or "", self.project)


@dataclass(frozen=True)
class Dashboard:
    """What is made, as wandb-workspaces has it."""

    workspace: Any
    report: Any

    def plain(self) -> dict[str, Any]:
        """What is sent, as plain data."""
        models = {"workspace": self.workspace._to_model(), "report": self.report._to_model()}
        return {name: model.model_dump(mode="json", by_alias=True, exclude_none=True) for name, model in models.items()}


def place_of(directory: Path, entity: str | None, project: str | None) -> Place:
    """Where the sweep's runs are sent: as asked for, else as their config says, else WANDB_ENTITY's ("": one's own).

    Raises:
        ConfigError: there is no sweep.
    """
    first = RunDirectory(directory / read_plan(directory)["runs"][0]["run_id"])
    tracking = first.config().tracking.wandb
    named = entity or tracking.entity or os.environ.get("WANDB_ENTITY", "")
    return Place(named, project or tracking.project)


def make_dashboard(directory: Path, place: Place) -> Dashboard:
    """Sections with the panels that the sweep's runs have data for.

    Raises:
        ConfigError: there is no sweep, or wandb-workspaces is missing.
    """
    try:
        import wandb_workspaces.reports.v2 as wr
        import wandb_workspaces.workspaces as ws
        from wandb_workspaces import expr
    except ImportError:
        hint = "pip install 'wmresearch[dashboard]'"
        raise ConfigError([Problem("wm dashboard", "", "", "the package wandb-workspaces", hint)]) from None
    plan = read_plan(directory)
    panels = _panels(directory, wr)
    group = f"Metric('Group') = '{plan['name']}'"
    arms = [plan["baseline"], *(arm for arm in plan["arms"] if arm != plan["baseline"])]
    workspace = ws.Workspace(
        entity=place.entity,
        project=place.project,
        name=plan["name"],
        sections=[
            ws.Section(
                name=section,
                panels=[*panels[section], *([wr.MarkdownPanel(markdown=ended(directory))] * (section == "failures"))],
                is_open=section != "failures",
                panel_settings=ws.SectionPanelSettings(x_axis="step"),
            )
            for section in SECTIONS
        ],
        settings=ws.WorkspaceSettings(x_axis="step", max_runs=100),
        runset_settings=ws.RunsetSettings(
            filters=f"{group} and Metric('JobType') = 'report'",
            groupby=[expr.Config("arm")],
            group_colors={arm: _COLORS[index % len(_COLORS)] for index, arm in enumerate(arms)},
            pinned_columns=["run:displayName", *_COLUMNS],
        ),
    )
    return Dashboard(workspace, _report(directory, place, plan, _panels(directory, wr), group, wr))


def _panels(directory: Path, wr: Any) -> dict[Section, list[Any]]:
    """Each section's, in the order of `logged`: first those at the runs' end, then those over steps."""
    panels: dict[Section, list[Any]] = {section: [] for section in SECTIONS}
    ends = summary_names(directory)
    for logged in SUMMARY:
        if logged.name in ends:
            panels[logged.section].append(_bar(logged, wr))
    for logged, names in sort(history_names(directory))[0].items():
        panels[logged.section].append(_over_steps(logged, names, wr))
    loss = next((name for name in ("test_loss", "validation_loss") if name in ends), None)
    for logged in SUMMARY:
        if loss and logged.name in ends and logged.name in ("parameters", "training_flops", "total_rank"):
            title = f"{loss.replace('_', ' ')} against {logged.title.lower()}".capitalize()
            axes = {"x": wr.SummaryMetric(logged.name), "y": wr.SummaryMetric(loss)}
            panels["cost"].append(wr.ScatterPlot(title=title, **axes, log_x=logged.name != "total_rank"))
    return panels


def _bar(logged: Logged, wr: Any) -> Any:
    lowest = logged.section == "failures"
    return wr.BarPlot(
        title=logged.title,
        metrics=[logged.name],
        groupby=wr.Config("arm"),
        groupby_aggfunc="min" if lowest else "mean",
        groupby_rangefunc="none" if lowest else "stddev",
    )


def _over_steps(logged: Logged, names: Sequence[str], wr: Any) -> Any:
    if logged.shown == "picture":
        return wr.MediaBrowser(title=logged.title, media_keys=list(names), mode="gallery", gallery_axis="step")
    return wr.LinePlot(
        title=logged.title,
        x="step",
        y=list(names),
        title_x="step",
        log_y=logged.log or None,
        groupby=wr.Config("arm"),
        groupby_aggfunc="mean",
        groupby_rangefunc="minmax",
        max_runs_to_show=100,
    )


def _report(
    directory: Path, place: Place, plan: Mapping[str, Any], panels: dict[Section, list[Any]], group: str, wr: Any
) -> Any:
    counted = f"{group} and Metric('JobType') = 'report'"
    blocks = [
        wr.P(
            f"{len(plan['arms'])} arms, compared with “{plan['baseline']}”. Made again by `wm dashboard {directory}`."
        ),
        wr.TableOfContents(),
    ]
    for section in SECTIONS:
        blocks.append(wr.H2(section))
        if section == "main comparison":
            blocks.append(wr.MarkdownBlock(render(build_table(directory), "md")))
        kept, columns = counted, list(_COLUMNS)
        if section == "failures":
            blocks.append(wr.MarkdownBlock(ended(directory)))
            kept = f"{group} and Summary('state') != 'finished'"
        runset = wr.Runset(name=section, filters=kept, groupby=["config.arm"], pinned_columns=columns)
        blocks.append(wr.PanelGrid(runsets=[runset], panels=panels[section]))
    title, description = f"{plan['name']}: {len(plan['runs'])} runs", f"The sweep {plan['name']}."
    # without an entity wandb-workspaces would ask the server for one's own
    return wr.Report(
        entity=place.entity, project=place.project, title=title, description=description, blocks=blocks, width="fluid"
    )


def ended(directory: Path) -> str:
    """The runs that did not finish and why, as a Markdown table; at the time when this is made."""
    rest = [run for run in statuses(directory) if run.state != "finished"]
    if not rest:
        return "Every run finished."
    rows = [f"| {run.arm} | {run.seed} | {run.state} | {run.step} | {run.reason or ''} |" for run in rest]
    return "\n".join(["| arm | seed | state | step | reason |", "|---|--:|---|--:|---|", *rows])


def save(directory: Path, dashboard: Dashboard) -> dict[str, str]:
    """Sends both to W&B, over those that were sent before, and returns their addresses."""
    old = read_json(directory / _SAVED) or {}
    workspace, report = dashboard.workspace, dashboard.report
    if old.get("place") == [workspace.entity, workspace.project]:
        workspace._internal_name, workspace._internal_id, report.id = old["name"], old["workspace"], old["report"]
    report.save()  # makes the project where there is none
    workspace.save()
    found = {"name": workspace._internal_name, "workspace": workspace._internal_id, "report": report.id}
    write_json(directory / _SAVED, {"place": [workspace.entity, workspace.project], **found})
    return {"workspace": workspace.url, "report": report.url}

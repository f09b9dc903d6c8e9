"""Writes what `wm report` makes of a sweep: the page, and the figures beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wmresearch.config.problems import Problem
from wmresearch.reports.evidence import read_evidence
from wmresearch.reports.figures_sweep import Made, draw_figures, write_figures
from wmresearch.reports.page import build_page
from wmresearch.reports.page_words import goes_on, states
from wmresearch.reports.records import ReportError
from wmresearch.training.files import write_atomically


@dataclass(frozen=True)
class Written:
    """What was written, and what could not be."""

    page: Path
    folder: Path
    figures: list[Path]
    missing: list[Made]
    summary: str
    goes_on: bool
    """Some run has not ended."""


def write_report(directory: Path, out: Path | None = None, refresh: float | None = None) -> Written:
    """Writes the page of the sweep in a directory. It reads itself again every `refresh` seconds while runs go on.

    Raises:
        ReportError: there is no sweep in the directory, its runs read different corpora, or nothing can be written.
    """
    evidence = read_evidence(directory)
    made = draw_figures(evidence)
    going_on, counted = goes_on(evidence), states(evidence)
    page = out or Path(directory) / "report" / "index.html"
    folder = page.parent / "figures"
    text = build_page(evidence, made, refresh if going_on else None)
    try:
        figures = write_figures(made, folder)
        write_atomically(page, text)
    except OSError as error:
        expected = "a file that can be written, in a folder that can be made"
        raise ReportError([Problem(str(page), "", error.strerror or "", expected)]) from None
    summary = f"{counted['finished']:,} of {counted.total():,} runs finished"
    return Written(page, folder, figures, [each for each in made if each.missing], summary, going_on)

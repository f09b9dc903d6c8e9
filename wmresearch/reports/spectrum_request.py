"""What `wm spectrum` is asked for: the wishes that go together, what answers them, and where the answer goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from wmresearch.config import ConfigError, Problem
from wmresearch.reports.figures import spectrum_png
from wmresearch.reports.spectrum import read_spectrum, read_two
from wmresearch.reports.spectrum_rendering import render, render_two
from wmresearch.reports.surgery import measure_surgery, render_surgery
from wmresearch.reports.trained_run import open_run
from wmresearch.training.files import write_atomically

FORMATS = ("md", "csv", "json", "png")
_COMMAND_LINE = "command line"


@dataclass(frozen=True)
class SpectrumRequest:
    """The arguments of `wm spectrum`, as they were given; None for what was not."""

    run: Path
    step: int | None = None
    form: str | None = None
    out: Path | None = None
    compare: Path | None = None
    drop_heads: str | None = None
    truncate: str | None = None


def answer(request: SpectrumRequest, report: Callable[[str], None] = lambda _: None) -> str:
    """The text to print: the answer itself, or which file it was written to.

    Raises:
        ConfigError: wishes that do not go together, a run that cannot be read, a file that cannot be written.
    """
    form = request.form or _form_of(request.out)
    problems: list[Problem] = []
    drops = _numbers("--drop-heads", request.drop_heads, 0, problems)
    ranks = _numbers("--truncate", request.truncate, 1, problems)
    _refuse_together(request, form, problems)
    if request.out is not None:
        _refuse_unwritable(request.out, problems)
    if problems:
        raise ConfigError(problems)
    content = _content(request, form, drops, ranks, report)
    target = request.out or (request.run / "spectrum.png" if form == "png" else None)
    if target is None:
        assert isinstance(content, str), "a figure has a file"
        return content
    try:
        write_atomically(target, content)
    except OSError as error:
        expected = "a file that can be written"
        raise ConfigError([Problem(str(target), "", "", expected, f"{error.strerror}; choose another --out")]) from None
    return f"written to {target}\n"


def _content(
    request: SpectrumRequest, form: str, drops: list[int], ranks: list[int], report: Callable[[str], None]
) -> str | bytes:
    if drops or ranks:
        return render_surgery(measure_surgery(open_run(request.run, request.step), drops, ranks, report), form)
    if request.compare is not None:
        first, second = read_two(request.run, request.compare, request.step)
        return spectrum_png([first, second]) if form == "png" else render_two(first, second, form)
    spectrum = read_spectrum(request.run, request.step)
    return spectrum_png([spectrum]) if form == "png" else render(spectrum, form)


def _form_of(out: Path | None) -> str:
    """What the file's ending says; Markdown where there is none or another."""
    ending = "" if out is None else out.suffix.removeprefix(".").lower()
    return ending if ending in FORMATS else "md"


def _numbers(option: str, text: str | None, least: int, problems: list[Problem]) -> list[int]:
    """The whole numbers of `1,2,4`, each once."""
    if text is None:
        return []
    parts = [part.strip() for part in text.split(",")]
    if all(part.isdecimal() and len(part) < 10 and int(part) >= least for part in parts):
        return list(dict.fromkeys(map(int, parts)))
    expected = f"whole numbers from {least} on, separated by commas"
    problems.append(Problem(_COMMAND_LINE, option, text, expected, f"for example {option} 1,2,4"))
    return []


def _refuse_together(request: SpectrumRequest, form: str, problems: list[Problem]) -> None:
    cutting = [
        option
        for option, value in (("--drop-heads", request.drop_heads), ("--truncate", request.truncate))
        if value is not None
    ]
    if cutting and request.compare is not None:
        expected = f"no --compare beside {' and '.join(cutting)}"
        problems.append(
            Problem(_COMMAND_LINE, "--compare", str(request.compare), expected, "ask for one run at a time")
        )
    if cutting and form == "png":
        asked = ("--out", str(request.out)) if request.form is None else ("--format", form)
        expected = f"md, csv or json with {' and '.join(cutting)}"
        problems.append(Problem(_COMMAND_LINE, *asked, expected, "the figure is one of spectra"))


def _refuse_unwritable(out: Path, problems: list[Problem]) -> None:
    """Before the work and not after it."""
    if out.is_dir() or not out.absolute().parent.is_dir():
        expected = "a file" if out.is_dir() else "a file in a folder that exists"
        problems.append(Problem(_COMMAND_LINE, "--out", str(out), expected))

"""All figures of a sweep that its data allow, as svg and png; of the others, why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from wmresearch.reports import figures_costs, figures_heads, figures_training
from wmresearch.reports.evidence import Evidence
from wmresearch.reports.figure_parts import CannotDrawError, Drawing, files, style
from wmresearch.training.files import write_atomically

Maker = Callable[[Evidence], Drawing]

FIGURES: dict[str, tuple[str, Maker]] = {
    "learning_curves": (
        "Validation loss over training",
        partial(figures_training.learning_curves, metric="validation_loss"),
    ),
    "training_curves": ("Training loss over training", partial(figures_training.learning_curves, metric="train_loss")),
    **{
        f"loss_by_{cost}": (f"Loss against {title}", partial(figures_costs.loss_against_cost, cost=cost))
        for cost, (title, _) in figures_costs.COSTS.items()
    },
    "learning_rate_sensitivity": ("Loss at each learning rate", figures_training.learning_rate_sensitivity),
    "spectra_curves": ("Spectra of the heads' maps", figures_heads.spectra_curves),
    "spectra_heat": ("Spectra of every head", figures_heads.spectra_heat),
    "effective_rank": ("Effective rank over training", figures_heads.effective_rank),
    "overlap_matrix": ("Overlap of heads", figures_heads.overlap_matrix),
    "rank_by_layer": ("Rank by layer", figures_heads.rank_by_layer),
    "truncation": ("Loss with maps cut to a rank", figures_heads.truncation),
}
"""Name of the files → title, and what draws it."""


@dataclass(frozen=True)
class Made:
    """A figure that was drawn, or why it was not."""

    name: str
    title: str
    caption: str = ""
    missing: str = ""
    svg: bytes = b""
    png: bytes = b""


def draw_figures(evidence: Evidence) -> list[Made]:
    """Every figure that is known, drawn or with the reason why not."""
    found = []
    with style():
        for name, (title, make) in FIGURES.items():
            try:
                drawing = make(evidence)
            except CannotDrawError as error:
                found.append(Made(name, title, missing=str(error)))
                continue
            drawn = files(drawing)
            found.append(Made(name, title, drawing.caption, svg=drawn["svg"], png=drawn["png"]))
    return found


def write_figures(made: list[Made], folder: Path) -> list[Path]:
    """Writes what was drawn as NAME.svg and NAME.png; what could not be drawn any more goes away."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for figure in made:
        for form, data in (("svg", figure.svg), ("png", figure.png)):
            path = folder / f"{figure.name}.{form}"
            if data:
                write_atomically(path, data)
                written.append(path)
            else:
                path.unlink(missing_ok=True)
    return written

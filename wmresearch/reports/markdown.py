"""Pipe tables that read well in a terminal too."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len


def pipe_table(header: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> list[str]:
    """The lines of a Markdown table, columns of numbers aligned to the right. Cells are taken as they are."""
    widths = [max(3, *map(cell_len, column)) for column in zip(header, *rows, strict=True)]
    rules = ["-" * (width - 1) + ":" if right else "-" * width for right, width in zip(numeric, widths, strict=True)]
    return [
        "| " + " | ".join(_pad(*cell) for cell in zip(line, widths, numeric, strict=True)) + " |"
        for line in (header, rules, *rows)
    ]


def _pad(cell: str, width: int, right: bool) -> str:
    space = " " * (width - cell_len(cell))
    return space + cell if right else cell + space

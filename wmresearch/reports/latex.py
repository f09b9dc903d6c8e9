"""A table as LaTeX with booktabs and siunitx, escaped so that pdflatex, xelatex and lualatex all compile it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from wmresearch.reports.shown import Shown

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "_": r"\_",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "`": r"\textasciigrave{}",
    "'": r"{'}",  # two would become one closing quote
    "-": r"{-}",  # two would become a longer dash
    "*": r"{*}",  # after a line end, a star or a bracket would belong to its command
    "[": r"{[}",
    "]": r"{]}",
    "<": r"\ensuremath{<}",  # these three are other glyphs in TeX's oldest text fonts
    ">": r"\ensuremath{>}",
    "|": r"\ensuremath{|}",
    "±": r"\ensuremath{\pm}",
    "−": r"\ensuremath{-}",
    "×": r"\ensuremath{\times}",
    "·": r"\ensuremath{\cdot}",
    "≤": r"\ensuremath{\leq}",
    "≥": r"\ensuremath{\geq}",
    "†": r"\textsuperscript{\dag}",
    "‡": r"\textsuperscript{\ddag}",
    "→": r"\ensuremath{\rightarrow}",
    "∞": r"\ensuremath{\infty}",
    "∑": r"\ensuremath{\sum}",
    "–": "--",
    "…": r"\dots{}",
}
_NUMBER = re.compile(r"([+−]?)(\d[\d,]*)(?:\.(\d+))?(?: ± (\d[\d.]*))?((?: [†‡])?)", re.ASCII)
"""A cell that siunitx can set: sign, digits before and after the point, half-width, mark."""
_NUMBERS = (
    r"\sisetup{separate-uncertainty = true, retain-zero-uncertainty = true, retain-explicit-plus = true,"
    r" table-align-uncertainty = false, group-digits = integer, group-separator = {,}, group-minimum-digits = 4}"
)
_ROOM_FOR_MARK = r", table-space-text-post = {\,\textsuperscript{\ddag}}"
_CHARACTER = r"\providecommand{\wmchar}[2]{\ifdefined\Uchar#1\else U+#2\fi}"
"""For a character that pdflatex has no glyph for: itself under the Unicode engines, else its code point."""


def to_tex(shown: Shown) -> str:
    """A `table*` float, scaled down to the text's width if it is wider; the footnotes as plain lines below it."""
    cells = [[column.header, *map(column.cell, shown.rows)] for column in shown.columns]
    aligned = [_aligned(column.numeric, texts) for column, texts in zip(shown.columns, cells, strict=True)]
    header, *lines = [" & ".join(row) + r" \\" for row in zip(*(texts for _, texts in aligned), strict=True)]
    lines = [r"\midrule " * (number in shown.groups) + line for number, line in enumerate(lines)]
    title = " ".join(filter(None, (shown.sweep, shown.about)))
    label = re.sub(r"[^A-Za-z0-9]+", "-", title)
    body = [
        r"\begin{table*}",
        r"\centering",
        rf"\caption{{Sweep {escape(title)}}}",
        rf"\label{{tab:{label}}}",
        r"\setlength{\tabcolsep}{4pt}",
        r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        _NUMBERS,
        r"\begin{tabular}{" + "".join(align for align, _ in aligned) + "}",
        r"\toprule",
        header,
        r"\midrule",
        *lines,
        r"\bottomrule",
        r"\end{tabular}}",
        r"\par\medskip",
        r"\begin{minipage}{\textwidth}\scriptsize\raggedright",
        *(escape(note) + r"\par" for note in shown.notes),
        r"\end{minipage}",
        r"\end{table*}",
    ]
    head = ["% needs \\usepackage{booktabs,graphicx,siunitx}"] + [_CHARACTER] * any(r"\wmchar" in line for line in body)
    return "\n".join([*head, *body]) + "\n"


def _aligned(numeric: bool, texts: Sequence[str]) -> tuple[str, list[str]]:
    """How a column is aligned, and its cells: at the decimal point where siunitx can set any of its numbers."""
    matches = [_NUMBER.fullmatch(text) for text in texts]
    found = [match.groups(default="") for match in matches if match]
    if not numeric or not found:
        return "r" if numeric else "l", [escape(text) for text in texts]
    signs, whole, decimals, halves, marks = zip(*found, strict=True)
    uncertain = max(len(half.replace(".", "").lstrip("0")) for half in halves) or int(any(halves))
    form = f"{'+' * any(signs)}{max(len(digits.replace(',', '')) for digits in whole)}.{max(map(len, decimals))}"
    form += f"({uncertain})" * (uncertain > 0) + _ROOM_FOR_MARK * any(marks)
    return f"S[table-format={form}]", [
        f"{{{escape(text)}}}" if match is None else _number(match) for text, match in zip(texts, matches, strict=True)
    ]


def _number(match: re.Match[str]) -> str:
    """As siunitx reads it; a mark behind it is text."""
    *_, mark = match.groups()
    number = match[0].removesuffix(mark).replace("−", "-").replace(",", "").replace("±", r"\pm")
    return number + (f" {{\\,{escape(mark.strip())}}}" if mark else "")


def escape(text: str) -> str:
    """Text on one line, as LaTeX prints it literally."""
    line = "".join(c for c in " ".join(text.split()) if unicodedata.category(c) != "Cc")
    return "".join(map(_character, line))


def _character(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isascii() or _is_accented_letter(char):
        return char
    return _greek(char) or rf"\wmchar{{{char}}}{{{ord(char):04X}}}"


def _is_accented_letter(char: str) -> bool:
    """A letter of Latin-1 that is an ASCII letter with an accent: TeX composes it in every font."""
    return ord(char) < 256 and unicodedata.normalize("NFD", char)[0].isascii() and char.isalpha() and char not in "ªº"


def _greek(char: str) -> str:
    r"""`λ` → `\ensuremath{\lambda}`. Capitals that look like Latin ones have no command, and are those letters."""
    match = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", unicodedata.name(char, ""))
    if not match:
        return ""
    name = {"LAMDA": "LAMBDA"}.get(match[2], match[2]).lower()
    if match[1] == "SMALL":
        return {"omicron": "o", "final": ""}.get(name, rf"\ensuremath{{\{name}}}" if name in _GREEK else "")
    latin = _LATIN_CAPITALS.get(name)
    return latin or (rf"\ensuremath{{\{name.capitalize()}}}" if name in _GREEK else "")


_GREEK = set(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi "  # noqa: SIM905 (23 words)
    "pi rho sigma tau upsilon phi chi psi omega".split()
)
_LATIN_CAPITALS = dict(
    zip(
        ["alpha", "beta", "epsilon", "zeta", "eta", "iota", "kappa", "mu", "nu", "omicron", "rho", "tau", "chi"],
        "ABEZHIKMNOPTX",
        strict=True,
    )
)

import re
import shutil
import subprocess

import pytest

from wmresearch.reports.latex import escape, to_tex
from wmresearch.reports.shown import Column, Shown
from wmresearch.reports.table import build_table, render

INSTALL = "no LaTeX here: install Debian's texlive-latex-recommended (pdflatex, booktabs) and texlive-science (siunitx)"
ODD = [
    "W_o",
    "[4] after a line end",
    "* and (",
    "#1 & 50% of $x^2$ {a} ~b \\c",
    "a--b ''c'' `d` \"e\" <|f|>",
    "λ=0.1 Σ_i Ως ε Α",
    "naïve café Ñandú ÅÄÖ ÿÇ æøß",
    "幅 的 ✓ → ≤ ∞ ½ € ª",
    "a\nb\tc\x07",
]


@pytest.mark.parametrize(
    ("text", "tex"),
    [
        ("W_M", r"W\_M"),
        ("50 %", r"50 \%"),
        ("<|>", r"\ensuremath{<}\ensuremath{|}\ensuremath{>}"),  # in OT1 fonts the bare ones print as ¡—¿
        ("a--b", r"a{-}{-}b"),
        ("a\\b", r"a\textbackslash{}b"),
        ("1.90 ± 0.02", r"1.90 \ensuremath{\pm} 0.02"),
        ("λ", r"\ensuremath{\lambda}"),
        ("Σ", r"\ensuremath{\Sigma}"),
        ("Α", "A"),
        ("é", "é"),
        ("中", r"\wmchar{中}{4E2D}"),
        ("a\n b", "a b"),
    ],
)
def test_escapes(text, tex):
    assert escape(text) == tex


def odd_table(sweep):
    folder = sweep(arms=ODD, grid={"optimizer.learning_rate": [1e-3, 2e-3]})
    for number, run in enumerate(folder.plan["runs"][:-2]):
        folder.run(run["arm"], run["seed"], 1.9 + 0.01 * (number % 7), at=run["settings"])
    folder.run("W_o", 2, None, state="failed", reason="out of memory: 12% of {GPU_0} & more\\")
    return render(build_table(folder.path), "tex")


def test_rules_are_booktabs_and_every_row_has_every_column(sweep):
    text = odd_table(sweep)
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\hline")] == [1, 1, 1, 0]
    columns = len(re.sub(r"\[[^]]*\]", "", re.search(r"begin{tabular}{(.+)}", text)[1]))
    rows = [line for line in text.splitlines() if line.endswith(r" \\")]
    assert len(rows) == 1 + 2 * len(ODD)
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {columns - 1}


def test_a_real_latex_compiles_it(sweep, tmp_path):
    if not all(map(_has, ("booktabs.sty", "siunitx.sty"))):
        pytest.skip(INSTALL)
    compiled(odd_table(sweep), tmp_path)
    log = (tmp_path / "paper.log").read_text(errors="replace")
    assert "Overfull \\hbox" not in log
    assert "Missing character" not in log


def compiled(table, folder):
    """`paper.pdf` of an article with the table."""
    lines = [r"\documentclass{article}", r"\usepackage{booktabs,graphicx,siunitx}", r"\begin{document}", table]
    (folder / "paper.tex").write_text("\n".join([*lines, r"\end{document}"]), encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "-no-shell-escape", "paper.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=60)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (folder / "paper.pdf").stat().st_size > 0


def _has(file: str) -> bool:
    kpsewhich = shutil.which("kpsewhich")
    return kpsewhich is not None and bool(subprocess.run([kpsewhich, file], capture_output=True).stdout.strip())


def columns_of(*texts):
    """The alignment and the cells of a table of one column."""
    column = Column("x", texts[0], str)
    lines = to_tex(Shown("s", "", [column], texts[1:], [])).splitlines()
    align = next(line for line in lines if r"\begin{tabular}" in line).removeprefix(r"\begin{tabular}{")[:-1]
    return align, [line.removesuffix(r" \\") for line in lines if line.endswith(r" \\")]


def test_numbers_stand_at_their_decimal_points():
    align, cells = columns_of("loss", "1.9078 ± 0.0072", "−12.9 ± 1.2 †", "+0.5", "–", "< 0.001", "3 ± 0")
    assert align == r"S[table-format=+2.4(2), table-space-text-post = {\,\textsuperscript{\ddag}}]"
    assert cells == [
        "{loss}", r"1.9078 \pm 0.0072", r"-12.9 \pm 1.2 {\,\textsuperscript{\dag}}", "+0.5", "{--}",
        r"{\ensuremath{<} 0.001}", r"3 \pm 0",
    ]  # fmt: skip
    assert columns_of("parameters", "827,392", "9") == ("S[table-format=6.0]", ["{parameters}", "827392", "9"])
    assert columns_of("loss", "1.9 ± 0", "2.0 ± 0")[0] == r"S[table-format=1.1(1)]", "else siunitx leaves ± 0 out"
    assert columns_of(",", "٣") == ("r", [",", r"\wmchar{٣}{0663}"])
    assert columns_of("cost", "5.10 MFLOP", "–") == ("r", ["cost", "5.10 MFLOP", "--"])


def test_a_real_latex_prints_the_numbers_of_the_table(tmp_path):
    reader = shutil.which("pdftotext")
    if reader is None or not _has("siunitx.sty"):
        pytest.skip(f"{INSTALL}, and poppler-utils (pdftotext)")
    shown = ["1.9078 ± 0.0072", "−12.9 ± 1.2", "+0.5", "0.0307 ± 0", "827,392", "< 0.001"]
    compiled(to_tex(Shown("s", "", [Column("x", "x", str)], shown, [])), tmp_path)
    subprocess.run([reader, "paper.pdf", "paper.txt"], cwd=tmp_path, check=True)
    printed = re.sub(r"\s", "", (tmp_path / "paper.txt").read_text(encoding="utf-8"))
    for number in shown:
        assert re.sub(r"\s", "", number.replace("± 0", "± 0.0000") if number.endswith("± 0") else number) in printed

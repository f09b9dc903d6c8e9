import re
import shutil
import subprocess

import pytest

from wmresearch.reports.latex import escape
from wmresearch.reports.table import build_table, render

INSTALL = "no LaTeX here: install Debian's texlive-latex-recommended (it brings pdflatex and booktabs)"
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
    columns = len(re.search(r"begin{tabular}{(\w+)}", text)[1])
    rows = [line for line in text.splitlines() if line.endswith(r" \\")]
    assert len(rows) == 1 + 2 * len(ODD)
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {columns - 1}


def test_a_real_latex_compiles_it(sweep, tmp_path):
    engine = shutil.which("pdflatex")
    if engine is None or not _has_booktabs():
        pytest.skip(INSTALL)
    document = "\n".join(
        [
            r"\documentclass{article}",
            r"\usepackage{booktabs,graphicx}",
            r"\begin{document}",
            odd_table(sweep),
            r"\end{document}",
        ]
    )
    (tmp_path / "paper.tex").write_text(document, encoding="utf-8")
    command = [engine, "-halt-on-error", "-interaction=nonstopmode", "-no-shell-escape", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=60)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "paper.pdf").stat().st_size > 0
    log = (tmp_path / "paper.log").read_text(errors="replace")
    assert "Overfull \\hbox" not in log
    assert "Missing character" not in log


def _has_booktabs() -> bool:
    kpsewhich = shutil.which("kpsewhich")
    return kpsewhich is not None and bool(
        subprocess.run([kpsewhich, "booktabs.sty"], capture_output=True).stdout.strip()
    )

"""The example of a kind of one's own, as README.md prints it."""

import re
from pathlib import Path

from wmresearch.config import yaml_text

_README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = _README.partition("### A kind of your own")[2].partition("\n## ")[0]


def _block(language: str) -> str:
    (block,) = re.findall(rf"^```{language}\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
    return block


CODE = _block("python")
ARM = yaml_text.parse(_block("yaml"), "README.md")
"""Name → what the arm changes."""


def write_example(folder: Path, code: str = CODE) -> Path:
    """Writes the file under the name that the arm gives it."""
    (changes,) = ARM.values()
    path = folder / changes["model.head_output"]["file"]
    path.write_text(code, encoding="utf-8")
    return path

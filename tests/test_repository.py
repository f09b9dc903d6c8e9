"""Laws of the repository itself: who may import whom, what no tracked file may hold, what the locks say."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "wmresearch"
ROOMS = ("config", "data", "algebra", "head_output", "model", "parallel", "training", "sweeps", "reports", "cli")
"""From the bottom to the top: each may import itself and those before it."""
MAX_LINES = 320
MODULES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in MODULES]


def room_of(path):
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports_of(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: import by the full name"
            # `from wmresearch import config` names the room after the import
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_a_module_imports_downwards_only(path):
    room = room_of(path)
    imported = set(imports_of(ast.parse(path.read_text(encoding="utf-8"))))
    rooms = {name.split(".")[1] for name in imported if name.startswith("wmresearch.")} & set(ROOMS)
    if room in ROOMS:
        above = rooms & set(ROOMS[ROOMS.index(room) + 1 :])
        assert not above, f"{room} imports {above}, which lies above it"
    elif room not in ("terminal", "__main__"):  # these stand beside cli, and may import what it may
        assert not rooms, f"wmresearch/{path.name} is in no room of {ROOMS}, so it may import none"
    top_levels = {name.split(".")[0] for name in imported}
    if room == "config":
        assert not top_levels & {"jax", "flax", "numpy", "optax", "tensorflow_datasets"}
    if room == "algebra":
        assert "flax" not in top_levels


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_a_module_is_short_and_does_not_print(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES, "split it: a file whose name needs 'and' is two files"
    if room_of(path) not in ("cli", "terminal"):
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        printing = [node.lineno for node in calls if isinstance(node.func, ast.Name) and node.func.id == "print"]
        assert not printing, f"print in line {printing}: nothing below cli prints"


def tracked_texts():
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs git and a clone")
    for name in filter(None, listed.decode().split("\0")):
        path = ROOT / name
        if path.is_file():
            yield name, path.read_text(encoding="utf-8", errors="replace")


def lines_that_match(pattern):
    return [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in tracked_texts()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_tracked_file_names_a_package_registry():
    hosts = ("pypi", "pythonhosted", "npmjs", "crates", "anaconda", "conda", "huggingface")
    pattern = re.compile(r"://[^\s/]*\b(?:" + "|".join(hosts) + r")\b|--(?:extra-)?index-url[ =]|--find-links[ =]")
    assert not lines_that_match(pattern)


def test_no_tracked_file_names_a_place_on_a_machine():
    folders = ("root", "home", "work", "tmp", "Users", "mnt")
    pattern = re.compile(r"(?<![\w.~}$*/-])/(?:" + "|".join(folders) + r")/\w")
    assert not lines_that_match(pattern)


@pytest.mark.parametrize("name", ["requirements.lock", "requirements.bootstrap.lock", "requirements.schemas.lock"])
def test_every_locked_requirement_is_pinned_and_hashed(name):
    text = re.sub(r"\s*#.*", "", (ROOT / name).read_text(encoding="utf-8")).replace("\\\n", " ")
    requirements = [line.strip() for line in text.splitlines() if line.strip()]
    assert requirements
    form = re.compile(r"[\w.\[\],-]+==[^\s;]+(?: ; [^\\]+?)?(?:\s+--hash=sha256:[0-9a-f]{64})+")
    assert [line for line in requirements if not form.fullmatch(line)] == []


def test_both_locks_agree_on_uv():
    versions = [
        re.findall(r"^uv==(\S+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        for name in ("requirements.lock", "requirements.bootstrap.lock")
    ]
    assert versions[0] == versions[1] != []

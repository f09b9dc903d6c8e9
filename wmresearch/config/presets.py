"""Finds a config file by its path or by its preset name (`gpt2`, `nanogpt-cpu`): a YAML file under `configs/`."""

from __future__ import annotations

import os
from pathlib import Path

from wmresearch.config.problems import ConfigError, Problem, nearest

_PACKAGE = Path(__file__).resolve().parents[1]
FOLDERS = (_PACKAGE.parent / "configs", _PACKAGE / "_configs")
"""Where presets lie: in a clone, and in an installed wheel."""


def presets(sweeps: bool = False) -> dict[str, Path]:
    """Name → path of every run config that comes with the project, or of every sweep; `_` in a file's name is `-`."""
    files = [file for folder in FOLDERS if folder.is_dir() for file in sorted(folder.glob("*/*.yaml"))]
    wanted = [file for file in files if (file.parent.name == "sweeps") == sweeps]
    return {file.stem.replace("_", "-"): file for file in reversed(wanted)}


def find_config(path_or_preset: str | Path, sweeps: bool = False) -> Path:
    """The file at a path, else the preset (or sweep) of that name.

    Raises:
        ConfigError: there is neither.
    """
    text = os.path.expanduser(path_or_preset)
    if os.path.isfile(text):
        return Path(text)
    known = presets(sweeps)
    name = str(path_or_preset).replace("_", "-")
    if name in known:
        return known[name]
    expected = f"a {'sweep' if sweeps else 'config'} file, or the name of one that comes with wmresearch"
    if os.path.isdir(text):
        hint = "this is a folder" + (f"; {near}" if (near := near_files(Path(text) / Path(text).name)) else "")
    elif text.endswith((".yaml", ".yml")) or os.sep in text:
        hint = near_files(Path(text)) or f"valid names: {', '.join(sorted(known))}"
    else:
        hint = nearest(name, sorted(known))
    raise ConfigError([Problem(str(path_or_preset), "", "", expected, hint)])


def near_files(path: Path) -> str:
    """A hint for a path where nothing is: the nearest name in its folder, or the folder that is missing."""
    folder = path.parent
    if not os.path.isdir(folder):
        return f"there is no folder {folder}"
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return ""
    files = [name for name in names if name.endswith((".yaml", ".yml"))] if path.suffix in (".yaml", ".yml") else names
    hint = nearest(path.name, files)
    return hint if hint.startswith("did") or (files is not names and len(files) <= 12) else ""

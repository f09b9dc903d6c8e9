"""Finds a config file by its path or by its preset name (`gpt2`, `nanogpt-cpu`): a YAML file under `configs/`."""

from __future__ import annotations

from pathlib import Path

from wmresearch.config.problems import ConfigError, Problem, nearest

_PACKAGE = Path(__file__).resolve().parents[1]
FOLDERS = (_PACKAGE.parent / "configs", _PACKAGE / "_configs")
"""Where presets lie: in a clone, and in an installed wheel."""


def presets() -> dict[str, Path]:
    """Name → path of every preset; `-` and `_` are the same in a name."""
    files = [file for folder in FOLDERS for file in sorted(folder.glob("*/*.yaml")) if folder.is_dir()]
    return {file.stem.replace("_", "-"): file for file in reversed(files)}


def find_config(path_or_preset: str | Path) -> Path:
    """The file at a path, else the preset of that name.

    Raises:
        ConfigError: there is neither.
    """
    path = Path(path_or_preset).expanduser()
    if path.is_file():
        return path
    known = presets()
    name = str(path_or_preset).replace("_", "-")
    if name in known:
        return known[name]
    siblings = [p.name for p in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
    hint = nearest(path.name, siblings) if path.suffix in (".yaml", ".yml") and siblings else nearest(name, sorted(known))
    raise ConfigError([Problem(str(path_or_preset), "", "", "a config file, or the name of a preset", hint)])

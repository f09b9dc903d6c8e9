"""YAML by the core rules of version 1.2, on PyYAML's parser: `1e-3` is a float, `no` and `12:30` are strings.

Source: YAML 1.2.2, section 10.3.2 (tag resolution of the core schema).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from wmresearch.config.problems import ConfigError, Problem

_CORE_RULES: tuple[tuple[str, str, str], ...] = (
    ("null", r"null|Null|NULL|~|", "nN~\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
)


class _CoreLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the core schema's rules in place of YAML 1.1's, and repeated keys refused."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise _YamlProblem(line, str(key), "a name (a string) as key", f"put it in quotes: '{key}'")
            if key in seen:
                raise _YamlProblem(line, key, f"each key once, and it was given in line {seen[key]} already")
            seen[key] = line
        return super().construct_mapping(node, deep)


class _YamlProblem(Exception):
    def __init__(self, line: int, value: str, expected: str, hint: str = "") -> None:
        super().__init__(expected)
        self.line, self.value, self.expected, self.hint = line, value, expected, hint


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    return int(text, 0) if text.startswith(("0o", "0x")) else int(text, 10)


def _construct_float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(str(loader.construct_scalar(node)).lower().replace(".inf", "inf").replace(".nan", "nan"))


for _tag, _pattern, _first in _CORE_RULES:
    _CoreLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), [c if c != "\0" else "" for c in _first]
    )
_CoreLoader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_CoreLoader.add_constructor("tag:yaml.org,2002:float", _construct_float)


def parse(text: str, source: str) -> Any:
    """The value that a YAML text stands for.

    Raises:
        ConfigError: the text is not YAML, or gives a key twice; the problem names `source` and the line.
    """
    try:
        return yaml.load(text, Loader=_CoreLoader)  # noqa: S506 (a safe loader, with stricter rules)
    except _YamlProblem as error:
        raise ConfigError([Problem(f"{source}:{error.line}", error.value, "", error.expected, error.hint)]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        reason = getattr(error, "problem", None) or " ".join(str(error).split()) or type(error).__name__
        raise ConfigError([Problem(where, "", "", "YAML that can be read", f"the parser says: {reason}")]) from None


def read(path: Path) -> Any:
    """The value in a YAML file; ConfigError where it is missing, unreadable or no YAML."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError([Problem(str(path), "", "", "a YAML file that can be read", f"{reason}")]) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            [Problem(str(path), "", "", "a text file in UTF-8", f"byte {error.start} is not UTF-8")]
        ) from None
    return parse(text, str(path))


def write(value: Any) -> str:
    """A value as YAML that `parse` reads back to the same value (floats keep a point or an exponent)."""
    return yaml.dump(value, Dumper=_CoreDumper, sort_keys=False, allow_unicode=True, width=120)


class _CoreDumper(yaml.SafeDumper):
    """Writes plain scalars only where the core rules read them back as the same type."""

    yaml_implicit_resolvers = _CoreLoader.yaml_implicit_resolvers


def _represent_float(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    text = repr(value) if value == value and abs(value) != float("inf") else f"{value:+}".replace("+", "").lower()
    text = {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(text, text)
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_CoreDumper.add_representer(float, _represent_float)

"""YAML by the core rules of version 1.2, on PyYAML's parser: `1e-3` is a float, `no` and `12:30` are strings.

Source: YAML 1.2.2, section 10.3.2 (tag resolution of the core schema). Stricter than that in four ways: keys are
strings, each is given once, tags other than the core schema's are refused, and so is what no config needs
(an alias inside its own anchor, nesting beyond 50, more than 100,000 values once aliases are written out).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from wmresearch.config.problems import ConfigError, Problem

MAX_DEPTH = 50
MAX_VALUES = 100_000
MAX_DIGITS = 1000

_TAG = "tag:yaml.org,2002:"
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
_PATTERNS = {_TAG + name: re.compile(rf"(?:{pattern})\Z") for name, pattern, _ in _CORE_RULES}
_TAGS = {*_PATTERNS, _TAG + "str", _TAG + "seq", _TAG + "map"}


class _CoreLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the core schema's rules in place of YAML 1.1's."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    return int(text, 0) if text.startswith(("0o", "0x")) else int(text, 10)


def _construct_float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(str(loader.construct_scalar(node)).lower().replace(".inf", "inf").replace(".nan", "nan"))


for _name, _, _first in _CORE_RULES:
    _CoreLoader.add_implicit_resolver(_TAG + _name, _PATTERNS[_TAG + _name], [c if c != "\0" else "" for c in _first])
_CoreLoader.add_constructor(_TAG + "int", _construct_int)
_CoreLoader.add_constructor(_TAG + "float", _construct_float)


def parse(text: str, source: str) -> Any:
    """The value that a YAML text stands for: a tree of dicts, lists and scalars that share nothing.

    Raises:
        ConfigError: the text is not YAML, gives a key twice, or the like; each problem names `source` and the line.
    """
    try:
        loader = _CoreLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        problems = _Inspection(source).problems_of(node)
        if problems:
            raise ConfigError(problems)
        return _unshared(loader.construct_document(node))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        reason = getattr(error, "problem", None) or " ".join(str(error).split())
        tab = "; indent with spaces, not with tabs" if r"'\t'" in reason else ""
        problem = Problem(where, "", "", "YAML that can be read", f"the parser says: {reason}{tab}")
    except RecursionError:
        problem = Problem(source, "", "", f"YAML nested at most {MAX_DEPTH} levels deep")
    raise ConfigError([problem])


class _Inspection:
    """Walks a document's nodes, each once, for what the parser lets pass and a config must not hold."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self.sizes: dict[int, int] = {}  # values below a node, aliases written out
        self.open: set[int] = set()  # nodes on the way from the root to here

    def problems_of(self, root: yaml.Node) -> list[Problem]:
        if self._visit(root, ()) > MAX_VALUES:
            expected = f"at most {MAX_VALUES} values, counted with each alias written out"
            self.problems.append(Problem(self.source, "", "", expected))
        return self.problems

    def _visit(self, node: yaml.Node, path: tuple[str, ...]) -> int:
        if id(node) in self.open:
            self._add(node, path, "", "an alias to something outside itself")
            return 1
        if id(node) in self.sizes:
            return self.sizes[id(node)]
        if len(path) > MAX_DEPTH:
            self._add(node, path[:3], "", f"nesting at most {MAX_DEPTH} levels deep")
            return 1
        self.open.add(id(node))
        if isinstance(node, yaml.MappingNode):
            size = 1 + self._visit_mapping(node, path)
        elif isinstance(node, yaml.SequenceNode):
            size = 1 + sum(self._visit(item, (*path, str(index))) for index, item in enumerate(node.value))
        else:
            size = 1
            self._visit_scalar(node, path)
        if node.tag not in _TAGS:
            self._add(node, path, node.tag.replace(_TAG, "!!"), "plain YAML without this tag")
        self.open.discard(id(node))
        self.sizes[id(node)] = size
        return size

    def _visit_mapping(self, node: yaml.MappingNode, path: tuple[str, ...]) -> int:
        size = 0
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            if key_node.tag != _TAG + "str" or not isinstance(key, str):
                shown = key if isinstance(key, str) else "…"
                hint = f"put it in quotes: '{key}'" if isinstance(key, str) else ""
                self._add(key_node, path, shown, "a name (a string) as key", hint)
                key = shown
            elif key in seen:
                self._add(key_node, (*path, key), "", f"each key once; line {seen[key]} gives it too")
            seen.setdefault(key, line)
            size += self._visit(value_node, (*path, key))
        return size

    def _visit_scalar(self, node: yaml.Node, path: tuple[str, ...]) -> None:
        pattern = _PATTERNS.get(node.tag)
        name = node.tag.removeprefix(_TAG)
        if pattern and not pattern.match(node.value):
            self._add(node, path, node.value, f"a value that the tag !!{name} fits")
        elif name == "int" and len(node.value) > MAX_DIGITS:
            self._add(node, path, node.value[:20] + "…", f"a whole number of at most {MAX_DIGITS} digits")

    def _add(self, node: yaml.Node, path: tuple[str, ...], value: str, expected: str, hint: str = "") -> None:
        where = f"{self.source}:{node.start_mark.line + 1}"
        self.problems.append(Problem(where, ".".join(path), value, expected, hint))


def _unshared(value: Any) -> Any:
    """A copy in which an alias is a thing of its own, so that a change at one place stays there."""
    if isinstance(value, dict):
        return {key: _unshared(item) for key, item in value.items()}
    return [_unshared(item) for item in value] if isinstance(value, list) else value


def is_plain(text: str) -> bool:
    """Whether a scalar written without quotes is read back as this string (and not as a number, null, …)."""
    return not any(pattern.match(text) for pattern in _PATTERNS.values())


def read(path: Path) -> Any:
    """The value in a YAML file; ConfigError where it is missing, unreadable or no YAML."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            expected, hint = "a text file in UTF-8", f"byte {error.start} is not UTF-8"
        else:
            expected, hint = "a YAML file that can be read", getattr(error, "strerror", None) or str(error)
        raise ConfigError([Problem(str(path), "", "", expected, hint)]) from None
    return parse(text, str(path))


def write(value: Any) -> str:
    """A value as YAML that `parse` reads back to the same value (floats keep a point or an exponent)."""
    return yaml.dump(value, Dumper=_CoreDumper, sort_keys=False, allow_unicode=True, width=120)


def flat(data: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Dotted key → value, of sections within sections; an empty section is a value."""
    out: dict[str, Any] = {}
    for key, value in data.items():
        out |= flat(value, f"{at}{key}.") if isinstance(value, Mapping) and value else {f"{at}{key}": value}
    return out


class _CoreDumper(yaml.SafeDumper):
    """Writes plain scalars only where the core rules read them back as the same type; no anchors."""

    yaml_implicit_resolvers = _CoreLoader.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _represent_float(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    text = {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(repr(value), repr(value))
    return dumper.represent_scalar(_TAG + "float", text)


_CoreDumper.add_representer(float, _represent_float)


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    # PyYAML leaves U+0085 and the like as they are in single quotes, and reads them back as line ends
    return dumper.represent_scalar(_TAG + "str", value, style=None if value.isprintable() else '"')


_CoreDumper.add_representer(str, _represent_text)

"""Kinds of the user's own: one Python file outside the package, with the two classes that a kind inside it has.

The class of `config.head_output` stands in the same file as the class of this room. Its fields are the settings, so
they are validated as the fields of every other kind are, and the file can become a kind of the package unchanged.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType

from wmresearch.config import ConfigError, Problem, RunConfig
from wmresearch.config.custom_file import KEY, read_code, sha256_of
from wmresearch.config.head_output import CustomConfig, HeadOutputConfig
from wmresearch.config.head_output import HeadOutput as BuiltIn
from wmresearch.config.model import ModelConfig
from wmresearch.config.problems import nearest
from wmresearch.config.types import kinds
from wmresearch.config.validation import Place, examine, shown
from wmresearch.head_output.base import HeadOutput

_BESIDE = tuple(HeadOutputConfig.model_fields)
"""Keys that stand beside `settings`, as they stand beside the own keys of every other kind."""


@dataclass(frozen=True)
class CustomKind:
    """What a file defines."""

    name: str
    head_output: type[HeadOutput]
    config: type[HeadOutputConfig]


def make_custom(config: CustomConfig, model: ModelConfig, layer: int, first: HeadOutput | None) -> HeadOutput:
    """The head output of a layer, as the file's class makes it from the settings.

    Raises:
        ConfigError: the file is not the one that was hashed, or it or a setting is wrong.
    """
    kind = load_kind(config)
    settings, problems = _settings(kind, config, model, lambda path: (config.file, path))
    if settings is None or problems:
        raise ConfigError(problems)
    return kind.head_output(settings, model, layer, first)


def custom_problems(config: RunConfig, place: Place) -> list[Problem]:
    """What is wrong with the file, its settings, or the module that they make: asked before anything is started."""
    chosen = config.model.head_output
    assert isinstance(chosen, CustomConfig)
    try:
        kind = load_kind(chosen)
    except ConfigError as error:
        return error.problems
    settings, problems = _settings(kind, chosen, config.model, place)
    if settings is None or problems or any(config.model.checks()):
        return problems
    try:
        kind.head_output(settings, config.model, 0, None)
    except Exception as error:  # the user's code may raise anything
        return [_raised(chosen.file, f"a {kind.head_output.__name__} that can be made", error)]
    return []


def load_kind(config: CustomConfig) -> CustomKind:
    """The classes in the file, which is run once for each content.

    Raises:
        ConfigError: it cannot be read or run, is no longer what was hashed, or does not define one kind.
    """
    return _load(config.file, config.sha256 or sha256_of(read_code(config)))


@functools.cache
def _load(path: str, sha256: str) -> CustomKind:
    code = read_code(CustomConfig(file=path, sha256=sha256))
    name = f"_wmresearch_custom_{hashlib.sha256(f'{sha256} {path}'.encode()).hexdigest()[:16]}"
    module = ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module  # where pydantic and dataclasses look up the names in annotations
    try:
        # Not by an import loader: that would run a .pyc which misses an edit within the same second, and leave one
        # beside the user's file. What is run here is what was hashed.
        exec(compile(code, path, "exec", dont_inherit=True), vars(module))
        return _kind_in(module)
    except ConfigError:
        del sys.modules[name]
        raise
    except Exception as error:  # the user's code may raise anything
        del sys.modules[name]
        hint = ""
        if isinstance(error, ImportError):
            hint = "a kind is one file: code of yours beside it is neither found nor part of the run's id"
        raise ConfigError([_raised(path, "Python code that runs", error, hint)]) from error


def _kind_in(module: ModuleType) -> CustomKind:
    path = str(module.__file__)

    def wrong(expected: str, found: str, hint: str = "") -> ConfigError:
        return ConfigError([Problem(path, "", "", f"{expected}, found {found}", hint)])

    own = dict.fromkeys(v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__)
    outputs = [member for member in own if issubclass(member, HeadOutput)]
    configs = [member for member in own if issubclass(member, HeadOutputConfig)]
    whole = [member for member in outputs if not inspect.isabstract(member)]
    if len(whole) != 1:
        lacking = [f"{each.__name__} lacks {', '.join(sorted(each.__abstractmethods__))}" for each in outputs]
        hint = "" if whole else "; ".join(lacking)
        raise wrong("one class derived from HeadOutput, with all of its methods", _names(whole), hint)
    name = getattr(whole[0], "kind", None)
    if not isinstance(name, str) or not name or name in kinds(BuiltIn):
        found = "none" if name is None else repr(name)
        raise wrong(f"`kind = …` in {whole[0].__name__}, with a name of its own", found, "it is what listings show")
    fitting = [member for member in configs if member.model_fields["kind"].default == name]
    if len(fitting) != 1:
        found = ", ".join(f"{each.__name__} of kind {each.model_fields['kind'].default!r}" for each in configs)
        expected = f'one class derived from HeadOutputConfig with `kind: Literal["{name}"] = "{name}"`'
        raise wrong(expected, found or "none", "its other fields are the settings")
    return CustomKind(name, whole[0], fitting[0])


def _names(members: Iterable[type]) -> str:
    return ", ".join(member.__name__ for member in members) or "none"


def _settings(
    kind: CustomKind, config: CustomConfig, model: ModelConfig, place: Place
) -> tuple[HeadOutputConfig | None, list[Problem]]:
    """The file's config object, made of the settings and of what stands beside them, and what is wrong with it."""

    def at(path: str) -> tuple[str, str]:
        first = path.partition(".")[0]
        return place(".".join(filter(None, (KEY, "" if first in _BESIDE else "settings", path))))

    names = [name for name in kind.config.model_fields if name not in _BESIDE]
    problems = [
        Problem(
            *place(f"{KEY}.settings.{name}"),
            shown(value),
            f"a setting of {kind.name}",
            f"{name} stands beside settings" if name in _BESIDE else nearest(name, names) or "it has none",
        )
        for name, value in config.settings.items()
        if name not in names
    ]
    defaults = HeadOutputConfig.model_fields
    given = {name: getattr(config, name) for name in _BESIDE if name != "kind"}
    data = {name: value for name, value in given.items() if value != defaults[name].default}
    data |= {name: value for name, value in config.settings.items() if name in names}
    examined = examine(kind.config, data, at)
    problems += examined.problems
    if problems or examined.config is None:
        return None, problems
    for check in examined.config.checks_in(model):
        key = check.path.removeprefix("head_output.")
        where = at(key) if key != check.path else place(f"model.{key}")
        problems.append(Problem(*where, shown(data[key]) if key in data else "", check.expected, check.hint))
    return examined.config, problems


def _raised(path: str, expected: str, error: Exception, hint: str = "") -> Problem:
    """The problem of an exception in the file, at the line that raised it."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines.append(error.lineno)
    text = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
    found = f"{type(error).__name__}: {text}".removesuffix(": ")
    source = f"{path}, line {lines[-1]}" if lines else path
    return Problem(source, "", "", f"{expected}, found {found}"[:500], hint)

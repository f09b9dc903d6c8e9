"""From blocks of a sweep file (the sweep, an arm, an entry of a list) to the settings they stand for, with places."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from wmresearch.config.draft import Draft, Origin
from wmresearch.config.problems import Problem, nearest
from wmresearch.config.validation import Examined, examine, shown
from wmresearch.config.variation import ArmOptions, Distribution, RandomDraws, Variation

__all__ = ["Block", "Factor", "Point", "Value", "draws", "overlap", "product", "read_arms", "sweep_factors"]


@dataclass(frozen=True)
class Value:
    """One key set to one value, and where in the sweep file: `grid.optimizer.learning_rate`, `.1`."""

    key: str
    value: Any
    path: str
    index: str = ""

    def set_in(self, run: Draft, sweep: Draft) -> None:
        source, place = sweep.place(self.path)
        run.set(self.key, self.value, Origin(source, place.removesuffix(self.key), self.index))


Point: TypeAlias = tuple[Value, ...]
"""Keys that are set together, in this order."""


@dataclass(frozen=True)
class Factor:
    """Points of which a setting takes one; beside other factors it multiplies."""

    name: str
    """grid, zip, list or random."""
    points: tuple[Point, ...]

    def keys(self) -> dict[str, str]:
        """Key → its place."""
        return {value.key: value.path for point in self.points for value in point}


@dataclass(frozen=True)
class Block:
    """What an arm changes, and the settings it is run at by itself."""

    fixed: Point
    factors: tuple[Factor, ...]
    options: ArmOptions
    sound: bool
    """Whether all of it is the user's own, so that runs can be made."""


def product(factors: Iterable[Factor]) -> Iterator[Point]:
    """Every combination, the last factor fastest; one empty point where there is no factor."""
    for points in itertools.product(*(factor.points for factor in factors)):
        yield tuple(itertools.chain.from_iterable(points))


def draws(chosen: RandomDraws) -> Iterator[dict[str, Any]]:
    """`count` settings. Each key has a stream of its own, so that more keys or draws change no earlier ones."""
    streams = {
        key: random.Random(int.from_bytes(hashlib.sha256(f"{chosen.seed} {key}".encode()).digest()))
        for key in chosen.keys
    }
    for _ in range(chosen.count):
        yield {key: _drawn(how, streams[key].random()) for key, how in chosen.keys.items()}


def _drawn(how: Distribution, share: float) -> Any:
    """Real numbers to four significant digits, which is how they are read and written."""
    if how.choice is not None:
        return how.choice[int(share * len(how.choice))]
    if how.integers is not None:
        low, high = how.integers
        return low + int(share * (high - low + 1))
    if how.uniform is not None:
        low_real, high_real = how.uniform
        return float(f"{low_real + share * (high_real - low_real):.4g}")
    assert how.log_uniform is not None
    low_real, high_real = how.log_uniform
    return float(f"{low_real * (high_real / low_real) ** share:.4g}")


def overlap(key: str, other: str) -> bool:
    """Whether one of two dotted keys is the other, or lies in it."""
    return key == other or key.startswith(other + ".") or other.startswith(key + ".")


def sweep_factors(examined: Examined[Any], draft: Draft, problems: list[Problem]) -> tuple[Factor, ...]:
    """What varies for every arm."""
    return tuple(_factors(examined, dict.fromkeys(Variation.model_fields, ""), draft, problems))


def read_arms(arms: Mapping[str, Mapping[str, Any]], draft: Draft, problems: list[Problem]) -> dict[str, Block]:
    """The arms, those that extend others with what these change first."""
    return {name: _arm(name, arms, draft, problems) for name in arms}


def _arm(name: str, arms: Mapping[str, Mapping[str, Any]], draft: Draft, problems: list[Problem]) -> Block:
    chain = [name]
    found: list[Problem] = []
    while isinstance(parent := arms[chain[-1]].get("extends"), str):
        if parent not in arms or parent in chain:
            place = draft.place(f"arms.{chain[-1]}.extends")
            said = f"an arm that does not extend {chain[-1]} in turn" if parent in arms else "the name of an arm"
            found.append(Problem(*place, shown(parent), said, nearest(parent, [arm for arm in arms if arm != name])))
            break
        chain.append(parent)
    fixed: list[Value] = []
    options: dict[str, Any] = {}
    owners: dict[str, str] = {}
    for arm in reversed(chain):
        for key, value in arms[arm].items():
            if key in ArmOptions.model_fields:
                options[key], owners[key] = value, f"arms.{arm}."
            else:
                fixed.append(Value(key, value, f"arms.{arm}.{key}"))
    examined = _examine(ArmOptions, options, owners, draft, f"arms.{name}.")
    found += examined.problems
    factors = tuple(_factors(examined, owners, draft, found))
    problems += found
    assert examined.config is not None
    return Block(tuple(fixed), factors, examined.config, not found)


def _entry(data: Mapping[str, Any], path: str, draft: Draft, problems: list[Problem]) -> tuple[Point, ...]:
    """The points of an entry of a list: its own keys, times what it varies by itself."""
    options = {key: value for key, value in data.items() if key in Variation.model_fields}
    owners = dict.fromkeys(options, path)
    examined = _examine(Variation, options, owners, draft, path)
    problems += examined.problems
    factors = list(_factors(examined, owners, draft, problems))
    fixed = tuple(Value(key, value, path + key) for key, value in data.items() if key not in options)
    return tuple(fixed + point for point in product(factors))


def _examine(
    which: type[Any], options: dict[str, Any], owners: Mapping[str, str], draft: Draft, path: str
) -> Examined[Any]:
    def place(inner: str) -> tuple[str, str]:
        return draft.place(owners.get(inner.partition(".")[0], path) + inner if inner else path.rstrip("."))

    return examine(which, options, place)


def _factors(
    examined: Examined[Any], owners: Mapping[str, str], draft: Draft, problems: list[Problem]
) -> Iterator[Factor]:
    chosen = examined.config
    assert isinstance(chosen, Variation)
    for key, values in (chosen.grid or {}).items():
        if examined.is_sound("grid", key):
            path = f"{owners['grid']}grid.{key}"
            yield Factor("grid", tuple((Value(key, value, path, f".{i}"),) for i, value in enumerate(values)))
    if chosen.zip and examined.is_sound("zip") and len(set(map(len, chosen.zip.values()))) == 1:
        columns = [_column(key, values, f"{owners['zip']}zip.{key}") for key, values in chosen.zip.items()]
        yield Factor("zip", tuple(zip(*columns, strict=True)))
    if chosen.list and examined.is_sound("list"):
        before = f"{owners['list']}list."
        entries = [_entry(entry, f"{before}{i}.", draft, problems) for i, entry in enumerate(chosen.list)]
        yield Factor("list", tuple(itertools.chain.from_iterable(entries)))
    if chosen.random and examined.is_sound("random") and not any(map(_broken, chosen.random.keys.values())):
        before = f"{owners['random']}random.keys."
        yield Factor(
            "random",
            tuple(
                tuple(Value(key, value, before + key) for key, value in drawn.items()) for drawn in draws(chosen.random)
            ),
        )


def _broken(how: Distribution) -> bool:
    return any(True for _ in how.checks())


def _column(key: str, values: Sequence[Any], path: str) -> list[Value]:
    return [Value(key, value, path, f".{i}") for i, value in enumerate(values)]

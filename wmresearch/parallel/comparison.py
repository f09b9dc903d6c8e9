"""The collectives of a compiled training step beside those that were predicted for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from wmresearch.parallel.collectives import Collective
from wmresearch.parallel.hlo_text import elements
from wmresearch.parallel.mesh import HEADS
from wmresearch.parallel.traffic import Exchange


class Group(NamedTuple):
    """Collectives that are counted together."""

    part: str
    """`model`: its two passes. `update`: what XLA adds for optimizer, penalties and norms. `step`: both."""
    kind: str
    axis: str
    """Of the config's mesh; `?` for groups of devices that are no axis's."""
    devices: int
    """That take part together; of a permute 2."""


@dataclass(frozen=True)
class Compared:
    """What a device receives in a step."""

    group: Group
    predicted_numbers: int
    predicted_bytes: int
    numbers: int
    """In the compiled program; arrays of a single number are not counted."""
    bytes: int

    @property
    def ratio(self) -> float | None:
        """Of numbers, compiled to predicted: XLA on CPUs exchanges 16-bit numbers as 32-bit ones."""
        return self.numbers / self.predicted_numbers if self.predicted_numbers else None


def compared(predicted: Iterable[Exchange], compiled: Iterable[Collective], apart: bool) -> tuple[Compared, ...]:
    """By group, the model's first. `apart`: whether the model can be told from the rest, as in `shard_map`."""
    numbers: tuple[Counter[Group], Counter[Group]] = (Counter(), Counter())
    sizes: tuple[Counter[Group], Counter[Group]] = (Counter(), Counter())
    for exchange in predicted:
        part = ("update" if exchange.when == "update" else "model") if apart else "step"
        group = Group(part, exchange.kind, exchange.axis, exchange.devices)
        numbers[0][group] += exchange.numbers_per_step
        sizes[0][group] += exchange.bytes_per_step
    for collective in compiled:
        if collective.axes == ():
            continue
        times = 1 if collective.times is None else collective.times
        devices = len(collective.groups[0]) if collective.groups else 0
        for array, source in zip(collective.arrays, sources(collective), strict=True):
            if array.shape:
                part = ("model" if "shard_map" in source else "update") if apart else "step"
                group = Group(part, collective.kind, _axis(collective.axes), devices)
                numbers[1][group] += times * array.numbers
                sizes[1][group] += times * array.bytes
    return tuple(
        Compared(group, numbers[0][group], sizes[0][group], numbers[1][group], sizes[1][group])
        for group in sorted({*numbers[0], *numbers[1]})
    )


def _axis(axes: tuple[str, ...] | None) -> str:
    return "?" if axes is None else ", ".join(dict.fromkeys("head" if axis in HEADS else axis for axis in axes))


def sources(collective: Collective) -> list[str]:
    """What each array was in the traced program: XLA writes those that it has combined as `jit(f)/(a:b)`."""
    text, count = collective.source, len(collective.arrays)
    if text.endswith(")"):
        start = _opening(text)
        parts = elements(text[start + 1 : -1], ":")
        if len(parts) == count:
            return [text[:start] + part for part in parts]
    return [text] * count


def _opening(text: str) -> int:
    """Where the last parenthesis was opened."""
    depth = 0
    for place in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return 0

"""Which head lives on which device.

All devices run one program, so each has as many places as the others; where heads do not divide evenly some places stay
empty (`PADDING`). Query heads stay with their key/value head. Where there are fewer of these than devices, `copies`
devices hold the same one, each with some of its query heads.

Heads of unequal rank are dealt out in rounds, the largest first: each device gets one of every round, in turns from the
first and from the last. A place is as wide as the widest head of its round, which is the least sum of widths that equal
places allow (to pair a head with a larger one only makes a place wider).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wmresearch.config import ConfigError, Problem
from wmresearch.config.model import ModelConfig
from wmresearch.head_output import kind_of
from wmresearch.head_output.dynamic_rank import DynamicRank
from wmresearch.head_output.rank_layout import RankLayout
from wmresearch.head_output.weights import PADDING, declared
from wmresearch.model.attention import Attention
from wmresearch.model.transformer import Transformer


@dataclass(frozen=True)
class LayerPlaces:
    """Where the heads of a layer lie, device after device; all numbers are positions among those that are there."""

    key_heads: tuple[int, ...]
    heads: tuple[int, ...]
    directions: tuple[int, ...] = ()
    """Of `dynamic_rank`: columns of A."""
    rows: tuple[int, ...] = ()
    """Of `dynamic_rank`: rows of B."""
    layout: RankLayout | None = None
    """Of `dynamic_rank`: that of each device."""


@dataclass(frozen=True)
class Placement:
    """Where everything that is divided over the head axis lies."""

    shards: tuple[int, int]
    """(a, c): devices with key heads of their own, and devices that share each one's; a · c is the head axis."""
    layers: tuple[LayerPlaces, ...]
    hidden: tuple[int, ...]
    vocabulary: tuple[int, ...]

    @property
    def devices(self) -> int:
        return self.shards[0] * self.shards[1]

    def order(self, of: str, layer: int | None) -> tuple[int, ...]:
        """What lies at each place, of what a parameter has along its axis (`weights.Along`)."""
        found: tuple[int, ...] = getattr(self if layer is None or of == "hidden" else self.layers[layer], of)
        return found


def make_placement(model: ModelConfig, transformer: Transformer, devices: int) -> Placement:
    """The placement of a model on so many devices of the head axis; a function of the two alone.

    The shards are those of all heads of the config, whichever are left: the mesh stays the same when heads go.

    Raises:
        ConfigError: there are several devices, and the head output does not say how they can divide it.
    """
    if devices > 1:
        _refuse_undivided(model, transformer)
    shards = choose_shards(model.kv_heads, model.n_heads // model.kv_heads, devices)
    return Placement(
        shards,
        tuple(_layer(block.attention, shards) for block in transformer.blocks),
        padded(transformer.blocks[0].mlp.up.shape[1], devices),
        padded(transformer.embedding.shape[0], devices),
    )


def _refuse_undivided(model: ModelConfig, transformer: Transformer) -> None:
    """Does nothing where the head output says how devices can divide it: a kind of the user's own may not."""
    output = transformer.blocks[0].attention.head_output
    own = {name: parameter for name, parameter in declared(output).items() if not name.endswith("bias")}
    if own and all(parameter.along is None for parameter in own.values()):
        ways = "`along=along_heads(axis)` or `along=along_key_heads(axis)`"
        hint = f"declare its parameters ({', '.join(own)}) with {ways}"
        expected = f"1: {kind_of(model.head_output)} does not say along which axes its heads lie"
        raise ConfigError([Problem("config", "parallel.mesh.head", "more than 1", expected, hint)])


def choose_shards(key_heads: int, group: int, devices: int) -> tuple[int, int]:
    """(a, c) with the fewest query heads a device; of equals the fewest copies.

    Key heads are copied only where each device then has one of them.
    """
    options = []
    for copies in range(1, devices + 1):
        apart = devices // copies
        if devices % copies == 0 and (copies == 1 or apart >= key_heads) and copies <= max(group, 1):
            options.append((-(-key_heads // apart) * -(-group // copies), copies))
    copies = min(options)[1]
    return devices // copies, copies


def padded(count: int, devices: int) -> tuple[int, ...]:
    """0, 1, … with as many empty places at the end as make them divisible."""
    return tuple(range(count)) + (PADDING,) * (-count % devices)


def _dealt(count: int, parts: int) -> list[list[int]]:
    """0, 1, … in order, over parts of equal size; the first parts are full where there are not enough for all."""
    size, rest = divmod(count, parts)
    most, out, start = size + (rest > 0), [], 0
    for part in range(parts):
        held = size + (part < rest)
        out.append([*range(start, start + held), *[PADDING] * (most - held)])
        start += held
    return out


def _layer(attention: Attention, shards: tuple[int, int]) -> LayerPlaces:
    """Heads in their order where all are equal, in rounds where they are not."""
    key_heads, heads = attention.key_shape()[0], len(attention.numbers)
    if not key_heads:
        return LayerPlaces((), (), layout=RankLayout((), 1))
    group, output = heads // key_heads, attention.head_output
    if not isinstance(output, DynamicRank):
        dealt = _dealt(key_heads, shards[0])
        return LayerPlaces(_flat(dealt), _query_heads(dealt, group, shards[1]))
    dealt = rounds(key_heads, shards[0])
    return _directions(output.layout, dealt, group, shards[1])


def rounds(count: int, parts: int) -> list[list[int]]:
    """For each part one of every `parts` in a row, in turns from the first and from the last."""
    numbers = [*range(count), *[PADDING] * (-count % parts)]
    dealt = [numbers[start : start + parts] for start in range(0, len(numbers), parts)]
    turned = [row[::-1] if index % 2 else row for index, row in enumerate(dealt)]
    return [list(part) for part in zip(*turned, strict=True)]


def _query_heads(dealt: list[list[int]], group: int, copies: int) -> tuple[int, ...]:
    """The query heads of the key heads that each part has, divided over its copies."""
    members, out = _dealt(group, copies), []
    for part in dealt:
        for copy in members:
            out += [PADDING if PADDING in (k, member) else k * group + member for k in part for member in copy]
    return tuple(out)


def _directions(old: RankLayout, dealt: list[list[int]], group: int, copies: int) -> LayerPlaces:
    """Places for the directions of heads that lie, the widest first, as `old` says."""
    starts, widths = np.cumsum([0, *old.widths]), old.widths
    of_round = [max(widths[k] for k in row if k != PADDING) for row in zip(*dealt, strict=True)]
    layout = RankLayout.of(tuple(of_round), 1, -(-group // copies))
    rows_of_place = old.rows_of_places()
    columns: list[int] = []
    rows: list[int] = []
    members = _dealt(group, copies)
    for part in dealt:
        held = [
            [*range(starts[k], starts[k] + widths[k]), *[PADDING] * (width - widths[k])]
            if k != PADDING
            else [PADDING] * width
            for k, width in zip(part, layout.widths, strict=True)
        ]
        columns += [place for head in held for place in head]
        for copy in members:
            rows += [
                PADDING if PADDING in (place, member) else int(rows_of_place[place, member])
                for head in held
                for member in copy
                for place in head
            ]
    return LayerPlaces(_flat(dealt), _query_heads(dealt, group, copies), tuple(map(int, columns)), tuple(rows), layout)


def _flat(dealt: list[list[int]]) -> tuple[int, ...]:
    return tuple(k for part in dealt for k in part)

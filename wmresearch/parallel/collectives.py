"""What devices say to each other in a compiled program, read from its HLO text: `compiled.as_text()`.

Numbers and bytes are those of what one device receives from a collective: they are comparable among collectives of one
kind and one size of groups; how much goes over the wires depends on the machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from wmresearch.parallel.device_groups import Groups, axes_by_groups, axes_of_pairs, read_groups, read_pairs
from wmresearch.parallel.hlo_text import Computation, Instruction, Program, elements, read_program

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)


@dataclass(frozen=True)
class ArrayShape:
    """An array on one device."""

    dtype: str
    """As HLO names it: f32, bf16, pred, s4, f8e4m3fn, …"""
    shape: tuple[int, ...]

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Narrow numbers count as packed: two of s4 are one byte."""
        return -(-self.numbers * _bits(self.dtype) // 8)


@dataclass(frozen=True)
class Collective:
    """A collective, as one of its devices takes part in it."""

    kind: str
    arrays: tuple[ArrayShape, ...]
    """What it returns; several for a tuple."""
    groups: Groups
    """The devices that take part together, by their places in the mesh; of a permute the pairs (from, to)."""
    axes: tuple[str, ...] | None
    """The axes of the mesh that it goes over, none of size 1; None: its groups are those of no set of axes."""
    times: int | None
    """How often it runs in one call of the program; None: in a loop whose count is not known."""
    source: str
    """What it was in the traced program, such as `jit(f)/while/body/psum`; empty where the text does not say."""

    @property
    def numbers(self) -> int:
        """Of all arrays, when it runs once."""
        return sum(array.numbers for array in self.arrays)

    @property
    def bytes(self) -> int:
        """Of all arrays, when it runs once."""
        return sum(array.bytes for array in self.arrays)


def read_collectives(hlo: str, mesh: Mapping[str, int]) -> tuple[Collective, ...]:
    """All collectives that a call of the program reaches, in the order of the text; `mesh`: its axes and their sizes.

    One that is reached in two ways, in a computation that two instructions call, is listed for each of them. Each
    branch of a conditional counts as taken. A start and its done are one. Text that is not HLO has none.
    """
    program = read_program(hlo)
    reader = _Reader(program, mesh, axes_by_groups(mesh))
    return tuple(reader.reached(program.entry, 1, frozenset(), set()))


def total_bytes(collectives: Iterable[Collective], kind: str | None = None, axes: tuple[str, ...] | None = None) -> int:
    """Bytes that they return in one call of the program, where asked only those of one kind or over just these axes.

    One whose times are not known counts as running once.
    """
    asked = (each for each in collectives if kind in (None, each.kind) and axes in (None, each.axes))
    return sum(each.bytes * (1 if each.times is None else each.times) for each in asked)


@dataclass(frozen=True)
class _Reader:
    program: Program
    mesh: Mapping[str, int]
    axes: Mapping[frozenset[frozenset[int]], tuple[str, ...]]
    """By the groups that belong to them."""

    def reached(
        self, name: str, times: int | None, callers: frozenset[str], channels: set[str]
    ) -> Iterator[Collective]:
        """Those of a computation that runs so often, and of what it calls.

        `channels`: those that pieces were seen of. Programs for TPUs spread one collective over several fusions, to
        run beside other work; each holds a piece that looks like the whole.
        """
        computation = self.program.computations.get(name, Computation())
        for instruction in computation.instructions.values() if name not in callers else ():
            if instruction.opcode.removesuffix("-start") in KINDS:
                piece = _PIECE.search(instruction.line) and _CHANNEL.search(instruction.rest)
                if not piece or piece[0] not in channels:
                    yield self._collective(instruction, times)
                channels |= {piece[0]} if piece else set()
                continue
            for call in self.program.calls(computation, instruction):
                total = None if times is None or call.times is None else times * call.times
                within = channels if instruction.opcode == "fusion" else set[str]()
                found = self.reached(call.computation, total, callers | {name}, within)
                if instruction.opcode == "fusion" and call.computation.startswith("all-reduce-scatter"):
                    found = (_scattered(each, instruction) for each in found)
                yield from found

    def _collective(self, instruction: Instruction, times: int | None) -> Collective:
        kind = instruction.opcode.removesuffix("-start")
        if kind == "collective-permute":
            pairs = read_pairs(instruction.rest)
            groups, axes = pairs or (), axes_of_pairs(pairs, self.mesh) if pairs is not None else None
        else:
            groups = read_groups(instruction.rest, self.program.devices or math.prod(self.mesh.values()))
            axes = self.axes.get(frozenset(map(frozenset, groups)))
        return Collective(kind, _returned(instruction), groups, axes, times, _source(instruction))


_SOURCE = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_CHANNEL = re.compile(r"\bchannel_id=\d+")
_PIECE = re.compile(r'"async_collective_fusion_config"')
_ARRAY = re.compile(r"\b(?P<dtype>[a-z]\w*)\[(?P<sizes>[\d,\s<=]*)\]")


def _scattered(all_reduce: Collective, fusion: Instruction) -> Collective:
    """A reduce-scatter as programs for TPUs have it: a fusion of an all-reduce and the slice of it that is wanted."""
    source = all_reduce.source or _source(fusion)
    return replace(all_reduce, kind="reduce-scatter", arrays=_arrays(fusion.shape), source=source)


def _source(instruction: Instruction) -> str:
    found = _SOURCE.search(instruction.line)
    return found[1] if found else ""


def _returned(instruction: Instruction) -> tuple[ArrayShape, ...]:
    """The arrays that a collective returns, or that its done does.

    A start gives a tuple (operands, results, …), except that of all-reduce, which gives the results.
    """
    shape = instruction.shape
    if instruction.opcode.endswith("-start") and shape.startswith("("):
        parts = elements(shape[1:])
        if len(parts) > 1 and (parts[0].startswith("(") or instruction.opcode != "all-reduce-start"):
            shape = parts[1]
    return _arrays(shape)


def _arrays(shape: str) -> tuple[ArrayShape, ...]:
    """The arrays in a shape, without tokens and the like. A bounded size, `<=8`, counts as its bound."""
    return tuple(
        ArrayShape(found["dtype"], tuple(map(int, re.findall(r"\d+", found["sizes"]))))
        for found in _ARRAY.finditer(shape)
        if _bits(found["dtype"])
    )


def _bits(dtype: str) -> int:
    """Bits of a number: they begin its name (f8e4m3fn has 8); 0 of what is no number, such as a token."""
    width = re.match(r"[a-z]+(\d+)", dtype)
    return 8 if dtype == "pred" else int(width[1]) if width else 0

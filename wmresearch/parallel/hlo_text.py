"""The computations of a compiled program, read from its HLO text: `compiled.as_text()`.

The text is no stable interface. What is not understood is left out, and never an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Instruction:
    """A line such as `%name = f32[4]{0} opcode(%operand), attribute=…`."""

    name: str
    shape: str
    opcode: str
    rest: str
    """Operands and attributes: what follows the opcode's bracket, strings emptied (they may hold anything)."""
    line: str

    @property
    def operands(self) -> list[str]:
        """Names of instructions; of a constant its value, of a parameter its number."""
        return [(operand.split() or [""])[-1].removeprefix("%") for operand in elements(self.rest)]


@dataclass(frozen=True)
class Computation:
    """Instructions by their names, in the order of the text."""

    instructions: dict[str, Instruction] = field(default_factory=dict)

    @property
    def root(self) -> Instruction | None:
        """What the computation returns."""
        return next((each for each in self.instructions.values() if each.line.lstrip().startswith("ROOT")), None)

    def origin(self, name: str) -> Instruction | None:
        """The instruction of this name; where it only copies, the one whose value it copies."""
        found = self.instructions.get(name)
        seen = {name}
        while found and found.opcode in ("copy", "bitcast", "copy-start", "copy-done"):
            name = (found.operands or [""])[0]
            found = None if name in seen else self.instructions.get(name)
            seen.add(name)
        return found

    def constant(self, name: str) -> int | None:
        """The value of a whole number that the text states."""
        found = self.origin(name)
        text = found.operands[0] if found and found.opcode == "constant" and found.operands else ""
        return int(text) if re.fullmatch(r"-?\d+", text) else None

    def place(self, name: str) -> int | None:
        """Which element it is of the tuple that the computation is called with."""
        found = self.origin(name)
        if not found or found.opcode != "get-tuple-element":
            return None
        of = self.origin(found.operands[0]) if found.operands else None
        index = re.search(r"\bindex=(\d+)", found.rest)
        return int(index[1]) if index and of and of.opcode == "parameter" else None


@dataclass(frozen=True)
class Call:
    """An instruction's call of a computation."""

    computation: str
    times: int | None
    """How often, each time that the instruction runs; None: a loop whose count is not known."""


@dataclass(frozen=True)
class Program:
    """The computations of a text by their names; none where it is not HLO."""

    computations: Mapping[str, Computation]
    entry: str
    devices: int | None
    """How many it was compiled for; None where the text does not say."""

    def calls(self, caller: Computation, instruction: Instruction) -> Iterator[Call]:
        """The computations that an instruction runs: a loop's, and each branch of a conditional once."""
        if instruction.opcode.endswith(("-done", "-update")):
            return  # they name what their start has run
        trips = self._trips(caller, instruction) if instruction.opcode == "while" else 1
        for role, name in _called(instruction):
            # a loop asks once more than it runs
            yield Call(name, None if trips is None else trips + (role == "condition"))

    def _trips(self, caller: Computation, loop: Instruction) -> int | None:
        """How often a loop runs: as XLA states it, or else as its counter says (programs for TPUs state none)."""
        stated = _TRIPS.search(loop.line)
        if stated:
            return int(stated[1])
        called = dict(_called(loop))
        condition = self.computations.get(called.get("condition", ""), Computation())
        body = self.computations.get(called.get("body", ""), Computation())
        return _counted_trips(caller.origin(loop.operands[0]) if loop.operands else None, caller, condition, body)


def read_program(hlo: str) -> Program:
    """The computations of a compiled program."""
    computations, entry = dict[str, Computation](), ""
    lines: list[str] | None = None
    read: list[tuple[str, list[str]]] = []
    for line in hlo.splitlines():
        header = None if _START.match(line) else _HEADER.fullmatch(line)
        if header:
            lines = []
            read.append((header["name"], lines))
            entry = header["name"] if header["entry"] else entry
        elif line.lstrip().startswith("}"):
            lines = None
        elif lines is not None and (_START.match(line) or not lines):
            lines.append(line)
        elif lines is not None:  # who writes by hand may break an instruction over lines
            lines[-1] += " " + line.strip()
    for name, lines in read:
        found = [instruction for instruction in map(_instruction, lines) if instruction]
        computations[name] = Computation({instruction.name: instruction for instruction in found})
    module = re.match(r"\s*HloModule\b.*", hlo)
    counts = re.findall(r"\b(?:replica_count|num_partitions)=(\d+)", module[0] if module else "")
    return Program(computations, entry, math.prod(map(int, counts)) if counts else None)


def elements(text: str, between: str = ",") -> list[str]:
    """What lies between the commas of a bracket; the text begins behind it, and may go on after its end."""
    found, depth = [""], 0
    for mark in text:
        depth += (mark in "([{") - (mark in ")]}")
        if depth < 0:
            break
        if mark == between and not depth:
            found.append("")
        else:
            found[-1] += mark
    return [element.strip() for element in found] if found != [""] else []


_HEADER = re.compile(r"\s*(?P<entry>ENTRY\s+)?%?(?P<name>[\w.\-]+)\s*(?:\(.*)?\{\s*")
_START = re.compile(r"\s*(?:ROOT\s+)?%?[\w.\-]+\s*=\s")
_INSTRUCTION = re.compile(
    r"\s*(?:ROOT\s+)?%?(?P<name>[\w.\-]+)\s*=\s*(?P<shape>.*?)\s(?P<opcode>[a-z][\w\-]*)\((?P<rest>.*)"
)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_COMMENT = re.compile(r"/\*.*?\*/")
_TRIPS = re.compile(r'\\?"known_trip_count\\?":\s*\{\s*\\?"n\\?":\s*\\?"?(\d+)')
_CALLED = re.compile(
    r"\b(?P<role>to_apply|calls|body|condition|true_computation|false_computation|branch_computations"
    r"|called_computations)=(?:\{(?P<several>[^{}]*)\}|%?(?P<one>[\w.\-]+))"
)


def _instruction(line: str) -> Instruction | None:
    found = _INSTRUCTION.fullmatch(_COMMENT.sub("", _STRING.sub('""', line)))
    return Instruction(found["name"], found["shape"], found["opcode"], found["rest"], line) if found else None


def _called(instruction: Instruction) -> Iterator[tuple[str, str]]:
    """Roles and names."""
    for found in _CALLED.finditer(instruction.rest):
        for name in (found["one"] or found["several"] or "").split(","):
            yield found["role"], name.strip().removeprefix("%")


def _counted_trips(
    given: Instruction | None, caller: Computation, condition: Computation, body: Computation
) -> int | None:
    """How often a loop runs that counts in equal steps from a number up to a bound; None where it does not."""
    asked, handed_on = condition.root, body.root
    if not given or not asked or not handed_on or "direction=LT" not in asked.rest or len(asked.operands) != 2:
        return None
    if (given.opcode, asked.opcode, handed_on.opcode) != ("tuple", "compare", "tuple"):
        return None
    before, after = given.operands, handed_on.operands
    counter, limit = condition.place(asked.operands[0]), condition.place(asked.operands[1])
    if len(before) != len(after) or counter is None or max(counter, limit or 0) >= len(before):
        return None
    first, step = caller.constant(before[counter]), _step(body, after[counter], counter)
    if limit is None:
        bound = condition.constant(asked.operands[1])
    else:  # the bound is given to the loop, which hands it on as it is
        bound = caller.constant(before[limit]) if body.place(after[limit]) == limit else None
    return None if first is None or bound is None or step is None else max(0, -(-(bound - first) // step))


def _step(body: Computation, name: str, place: int) -> int | None:
    """What a loop adds to its counter; None where it does something else."""
    added = body.origin(name)
    if not added or added.opcode != "add" or len(added.operands) != 2:
        return None
    one, other = added.operands
    if body.place(one) != place:
        one, other = other, one
    step = body.constant(other) if body.place(one) == place else None
    return step if step and step > 0 else None

"""Operations of a program, counted from its jaxpr or from what the compiler made of it."""

import re

import numpy as np

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.-]+) = (\([^=]*?\)|\S+) ([\w-]+)\((.*)$")
_CALLED = re.compile(r"(?:calls|to_apply|called_computations|branch_computations)=(\{[^}]*\}|%?[\w.-]+)")


def product_flops(jaxpr):
    """2 × multiply-adds of every matrix product in a program."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2 * equation.outvars[0].aval.size * int(np.prod([left[axis] for axis in contracted]))
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                total += product_flops(inner)
    return total


def compiled_product_flops(text):
    """2 × multiply-adds of every matrix product that runs in a compiled program, from its HLO text.

    Products stand in the entry computation, in fusions, and in calls of a library's matrix product. A computation
    counts once for each place that calls it; loops are refused, since the text does not say how often they run.
    """
    computations, entry = _computations(text)

    def of(name):
        shapes = {instruction: _dims(shape) for instruction, shape, _, _ in computations[name]}
        total = 0
        for instruction, _, opcode, rest in computations[name]:
            operands = [shapes[found] for found in re.findall(r"%([\w.-]+)", rest.split("), ")[0]) if found in shapes]
            if opcode == "while":
                raise ValueError(f"{instruction} is a loop")
            if opcode == "dot":
                total += 2 * _size(shapes[instruction]) * _size(operands[0][axis] for axis in _axes(rest))
            elif opcode == "custom-call" and re.search(r'custom_call_target="[^"]*(matmul|gemm|dot)', rest, re.I):
                left, right, out = operands[0], operands[1], shapes[instruction]
                batch = _size(out[:-2])
                total += 2 * _size(out) * round((_size(left) * _size(right) / _size(out) / batch) ** 0.5)
            elif opcode == "convolution":
                raise ValueError(f"{instruction} is a convolution, which this does not count")
            for called in _CALLED.findall(rest):
                total += sum(of(each) for each in re.findall(r"[\w.-]+", called))
        return total

    return of(entry)


def _computations(text):
    found, entry, current = {}, None, None
    for line in text.splitlines():
        if start := _COMPUTATION.match(line):
            current = found.setdefault(start[1], [])
            entry = start[1] if line.startswith("ENTRY") else entry
        elif (instruction := _INSTRUCTION.match(line)) and current is not None:
            current.append(instruction.groups()[1:])
    return found, entry


def _dims(shape):
    numbers = re.match(r"\w+\[([\d,]*)\]", shape)
    return tuple(int(n) for n in numbers[1].split(",") if n) if numbers else ()


def _axes(rest):
    return [int(n) for n in re.search(r"lhs_contracting_dims=\{([\d,]*)\}", rest)[1].split(",") if n]


def _size(dims):
    return int(np.prod(list(dims)))

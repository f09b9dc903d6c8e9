"""Operations of a program, counted from its jaxpr."""

import numpy as np


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

"""The programs of runs so small that a test takes their steps by hand, on random tokens."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from tests.training.examples import config
from wmresearch.head_output.weights import abstract_params
from wmresearch.training.program import make_program
from wmresearch.training.step import Given

VOCAB = 31
DOUBLE = {"model__param_dtype": "float64", "model__dtype": "float64"}


def program(**changes):
    """The program of the smallest run with changes, as in `examples.config`; one that reads no text."""
    return make_program(config(Path("no text"), **{"model__context": 8} | changes), VOCAB)


def drawn(program, scale=0.3, seed=0):
    """Parameters that are all random, so that no term hides behind a zero or a one."""
    draw = np.random.default_rng(seed)
    abstract = abstract_params(program.transformer)
    return jax.tree.map(lambda leaf: jnp.asarray(scale * draw.standard_normal(leaf.shape), leaf.dtype), abstract)


def state_at(program, params):
    """The state of a run that starts at these parameters."""
    return program.state_at(params)


def batch(step, context=8):
    """Tokens `[2, context + 1]` of a step."""
    return jnp.asarray(np.random.default_rng(100 + step).integers(0, VOCAB, (2, context + 1)))


FAST_TO_COMPILE = {"xla_backend_optimization_level": "0"}


def walk(program, params, steps):
    """The states at so many steps' ends, after that before the first, and the metrics of each step."""
    step = jax.jit(program.step, compiler_options=FAST_TO_COMPILE)
    states, metrics = [state_at(program, params)], []
    for index in range(steps):
        state, found = step(states[-1], batch(index), Given())
        states.append(state)
        metrics.append(found)
    return states, metrics


def flat(tree):
    """Path → leaf."""
    return {"/".join(str(part.key) for part in path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def head_output(params, layer=0):
    """The parameters of a layer's head output, as numpy arrays."""
    found = params["blocks"][layer]["attention"]["head_output"]
    return {name: np.asarray(leaf) for name, leaf in found.items()}

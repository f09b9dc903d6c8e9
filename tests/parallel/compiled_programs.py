"""Run as a script: compiles small programs for eight devices, and writes their HLO texts as one JSON object."""

import json
import os
import sys

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

MESH = jax.make_mesh((2, 4), ("data", "head"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
SPREAD = P("data", "head")
X = jnp.ones((8, 16))


def along_head(x):
    """Of the type that a loop's carry needs: varying over the heads."""
    return jax.lax.pcast(jax.lax.psum(x, "head") / 4, "head", to="varying")


def repeated(body, length):
    return lambda x: jax.lax.scan(lambda carry, _: (body(carry), None), x, None, length=length)[0]


def counted(x, times):
    return jax.lax.fori_loop(0, times, lambda _, carry: along_head(carry), x)


def either(x, choice):
    return jax.lax.cond(choice, along_head, lambda x: jax.lax.ppermute(x, "data", [(0, 1), (1, 0)]), x)


def until_small(x):
    small = lambda x: jax.lax.pmax(jnp.max(x), ("data", "head")) > 1
    return jax.lax.while_loop(small, lambda x: x / 2, x)


def mapped(function, out=SPREAD, more=()):
    return jax.jit(jax.shard_map(function, mesh=MESH, in_specs=(SPREAD, *more), out_specs=out))


def placed(*axes):
    return NamedSharding(MESH, P(*axes))


AROUND = [(i, (i + 1) % 4) for i in range(4)]
PROGRAMS = {
    "nothing": (jax.jit(lambda x: x + 1), X),
    "one axis": (mapped(lambda x: jax.lax.psum(x, "head"), P("data")), X),
    "other axis": (mapped(lambda x: jax.lax.psum(x, "data"), P(None, "head")), X),
    "two axes": (mapped(lambda x: jax.lax.psum(x, ("data", "head")), P()), X),
    "tuple": (mapped(lambda x: jax.lax.psum((x, x[:1]), "head"), (P("data"), P("data"))), X),
    "scatter": (mapped(lambda x: jax.lax.psum_scatter(x, "data", scatter_dimension=0, tiled=True)), X),
    "gather": (mapped(lambda x: jax.lax.all_gather(x, "head", axis=1, tiled=True)), X),
    "permute": (mapped(lambda x: jax.lax.ppermute(x, "head", AROUND)), X),
    "exchange": (mapped(lambda x: jax.lax.all_to_all(x, "head", 0, 1, tiled=True)), X),
    "scan": (mapped(repeated(along_head, 5)), X),
    "nested scans": (mapped(repeated(repeated(along_head, 5), 3)), X),
    "traced count": (mapped(counted, more=(P(),)), X, 3),
    "in the condition": (mapped(until_small), X),
    "either": (mapped(either, more=(P(),)), X, True),
    "partial sums": (
        jax.jit(
            lambda x, w: x @ w,
            in_shardings=(placed("data", "head"), placed("head")),
            out_shardings=placed("data"),
        ),
        X,
        jnp.ones((16, 4)),
    ),
}

if __name__ == "__main__":
    texts = {name: program.lower(*args).compile().as_text() for name, (program, *args) in PROGRAMS.items()}
    json.dump(texts, sys.stdout)

"""Blocks that treat some positions at a time: values and gradients of all at once, and less memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from wmresearch.config.model import ModelConfig
from wmresearch.head_output import make_head_output, sparse
from wmresearch.head_output.turns import in_turns


def blocks(width, size, dtype):
    """A head output that stores blocks of so many rows, with random parameters, and what draws more numbers."""
    model = ModelConfig(
        d_model=width, n_heads=2, n_layers=1, context=8, dtype=dtype, param_dtype=dtype,
        head_output={"kind": "sparse", "pattern": {"kind": "block", "size": size}, "density": 0.25},
    )  # fmt: skip
    output = make_head_output(model, 0, None)
    draw = np.random.default_rng(0)
    grid = width // size
    output.blocks.set_value(jnp.asarray(draw.standard_normal(output.blocks.shape), dtype))
    for places in (output.rows, output.columns):
        places.set_value(jnp.asarray(draw.integers(0, grid, places.shape), jnp.int32))
    return output, lambda *shape: jnp.asarray(draw.standard_normal(shape), dtype)


def written(output, write, z, slope):
    """What is written, and the gradients of the blocks and of z."""
    graph, state = nnx.split(output)

    def of(values, z):
        return getattr(nnx.merge(graph, state | {"blocks": values}), write)(z)

    value, back = jax.vjp(of, state["blocks"], z)
    d_blocks, d_z = back(slope)
    return value, d_blocks[...], d_z


@pytest.mark.parametrize("write", ["write", "write_each"])
def test_values_and_gradients_are_those_of_all_positions_at_once(write, monkeypatch):
    with jax.enable_x64(True):
        output, draw = blocks(16, 4, "float64")
        z = draw(3, 7, 2, 16)
        slope = draw(*jax.eval_shape(getattr(output, write), z).shape)
        want = written(output, write, z, slope)
        for at_once in (1, 4, 20):  # 21 positions
            monkeypatch.setattr(sparse, "_positions_at_once", lambda _, size=at_once: size)
            for got, expected in zip(written(output, write, z, slope), want, strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


def held_in_float32(both_directions):
    """Bytes between, and those of what is gathered of all positions at once."""
    output, draw = blocks(512, 16, "float32")
    z, slope = draw(1, 1024, 2, 512), draw(1, 1024, 512)
    graph, state = nnx.split(output)
    if both_directions:
        program = jax.jit(lambda state, z: written(nnx.merge(graph, state), "write", z, slope))
    else:
        program = jax.jit(lambda state, z: nnx.merge(graph, state).write(z))
    held = program.lower(state, z).compile().memory_analysis().temp_size_in_bytes
    return held, 4 * 2 * output.blocks.shape[1] * 16 * 1024


def test_on_cpus_little_is_gathered_at_a_time():
    held, all_at_once = held_in_float32(both_directions=False)
    assert held < all_at_once / 3, (held, all_at_once)


def test_the_backward_pass_gathers_again_what_it_needs():
    held, all_at_once = held_in_float32(both_directions=True)
    assert held < all_at_once / 2, (held, all_at_once)


@pytest.mark.parametrize(("gathered", "positions"), [(1, 2**20), (696 * 32, 32), (48 * 128, 128), (2**30, 32)])
def test_positions_at_once_are_a_power_of_two_within_bounds(gathered, positions):
    assert sparse._positions_at_once(gathered) == positions


def test_no_rows_are_no_turn():
    assert in_turns(lambda x: x + 1, 4, jnp.zeros((0, 3))).shape == (0, 3)

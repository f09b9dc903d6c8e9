"""What is saved is what was there, though training goes on in the same buffers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.examples import same
from wmresearch.training.checkpoints import Keep, open_checkpoints
from wmresearch.training.step import TrainState


def state(value, step):
    big = jnp.full((1000, 1000), value)
    return TrainState(
        {"big": big, "half": jnp.full((3,), value, jnp.bfloat16)},
        (big * 2,),
        jnp.int32(step),
        {"nuclear": {"value": big[0, 0]}},
    )


@pytest.mark.parametrize("value", [1.0, 2.0, 3.0])
def test_a_state_may_be_donated_as_soon_as_it_is_saved(value, tmp_path):
    advance = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)
    with open_checkpoints(tmp_path / "checkpoints", Keep(1)) as checkpoints:
        now = state(value, 7)
        checkpoints.save(now, 7)
        for _ in range(20):
            now = advance(now)
    with open_checkpoints(tmp_path / "checkpoints", Keep(1)) as checkpoints:
        assert same(checkpoints.restore(state(0.0, 0)), state(value, 7))


def test_the_newest_are_kept_and_the_newest_is_restored(tmp_path):
    with open_checkpoints(tmp_path / "checkpoints", Keep(2)) as checkpoints:
        assert checkpoints.restore(state(0.0, 0)) is None
        for step in (3, 5, 9):
            checkpoints.save(state(float(step), step), step)
        checkpoints.save(state(-1.0, 9), 9)  # is there already
    kept = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert kept == {"5", "9"}
    with open_checkpoints(tmp_path / "checkpoints", Keep(2)) as checkpoints:
        restored = checkpoints.restore(state(0.0, 0))
    assert restored is not None and int(restored.step) == 9
    assert np.asarray(restored.params["big"])[0, 0] == 9.0

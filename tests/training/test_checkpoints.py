"""What is saved is what was there, though training goes on in the same buffers."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.examples import config, same, saved_steps
from wmresearch.config import ConfigError
from wmresearch.reports.trained_run import open_run
from wmresearch.training.checkpoints import Keep, open_checkpoints
from wmresearch.training.loop import train
from wmresearch.training.run_directory import RunDirectory
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


def test_every_so_manieth_and_the_best_are_kept_beside_the_newest(tmp_path):
    kept = lambda: {int(path.name) for path in (tmp_path / "checkpoints").iterdir()}
    with open_checkpoints(tmp_path / "checkpoints", Keep(1, every=4, best=True)) as checkpoints:
        for step, loss in ((2, 3.0), (3, 1.0), (4, None), (5, 2.0), (6, None)):
            checkpoints.save(small(step), step, validation_loss=loss)
    assert kept() == {3, 4, 6}
    with open_checkpoints(tmp_path / "checkpoints", Keep(1, every=4, best=True)) as checkpoints:
        checkpoints.save(small(7), 7, validation_loss=1.5)
        checkpoints.save(small(8), 8, validation_loss=0.5)
    assert kept() == {4, 8}, "losses are known of checkpoints that another process saved"


def test_what_a_killed_process_left_half_written_is_removed(tmp_path):
    with open_checkpoints(tmp_path / "checkpoints", Keep(1)) as checkpoints:
        checkpoints.save(small(1), 1)
    half = tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp"
    shutil.copytree(tmp_path / "checkpoints" / "1", half)
    with open_checkpoints(tmp_path / "checkpoints") as checkpoints:
        assert checkpoints.steps() == [1]
    assert half.exists(), "who only reads changes nothing"
    with open_checkpoints(tmp_path / "checkpoints", Keep(1)) as checkpoints:
        checkpoints.save(small(3), 3)
    assert not half.exists()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_state_is_restored_onto_another_type(dtype, tmp_path):
    """Rounded once, to the nearest: as a cast does."""
    draw = np.random.default_rng(0)
    saved = TrainState({"w": jnp.asarray(draw.standard_normal(100), jnp.float32)}, (), jnp.int32(1), {})
    with open_checkpoints(tmp_path / "checkpoints", Keep(1)) as checkpoints:
        checkpoints.save(saved, 1)
    like = {"w": jax.ShapeDtypeStruct((100,), dtype)}
    with open_checkpoints(tmp_path / "checkpoints") as checkpoints:
        assert same(checkpoints.restore_params(like, 1), {"w": saved.params["w"].astype(dtype)})


def small(step):
    return TrainState({"w": jnp.full((3,), float(step))}, (), jnp.int32(step), {})


def test_a_run_keeps_what_its_config_says(text, tmp_path):
    """At this rate its last loss is not its least."""
    chosen = config(
        text, training__steps=16, training__checkpoint_every=4, training__evaluate_every=4, training__diagnostics=False,
        training__keep=1, training__keep_every=8, training__keep_best=True,
        optimizer__learning_rate=0.3, optimizer__schedule={"kind": "constant"},
    )  # fmt: skip
    train(chosen, tmp_path / "run")
    losses = {
        line["step"]: line["validation_loss"]
        for line in RunDirectory(tmp_path / "run").metrics()
        if "validation_loss" in line
    }
    best = min(losses, key=losses.get)
    assert best not in (8, 16)
    assert saved_steps(tmp_path / "run") == sorted({best, 8, 16})
    assert open_run(tmp_path / "run", best).step == best


@pytest.mark.parametrize(("every", "expected"), [(None, "null"), (4, "a multiple of checkpoint_every = 4")])
def test_only_what_is_saved_can_be_kept(every, expected, text):
    with pytest.raises(ConfigError, match=rf"training.keep_every.*\n.*{expected}"):
        config(text, training__checkpoint_every=every, training__keep_every=6)

"""Updates that are skipped leave nothing behind but their count."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.training.examples import TEXT, config
from wmresearch.config.optimizer import SkippedSpikes
from wmresearch.training.loop import train
from wmresearch.training.spikes import IN_A_ROW, SkipSpikes
from wmresearch.training.step import Given, Parts, make_state, make_step

SKIP = SkipSpikes(SkippedSpikes(factor=5.0, in_a_row=2))


def walk(slopes):
    """States and metrics of steps whose loss is slope · w."""

    def loss(params, tokens, key, rows):
        value = params["w"] * tokens[0, 0]
        return value, {"train_loss": value}

    optimizer = optax.with_extra_args_support(optax.adam(0.1))
    step = jax.jit(make_step(loss, optimizer, lambda _: jnp.float32(0.1), Parts(skip=SKIP)))
    states, metrics = [make_state({"w": jnp.float32(1)}, optimizer, memory=SKIP.start())], []
    for slope in slopes:
        state, found = step(states[-1], jnp.full((1, 1), slope, jnp.float32), Given())
        states.append(state)
        metrics.append({name: float(value) for name, value in found.items()})
    return states, metrics


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 100.0])
def test_a_spike_changes_only_the_step_and_the_count(bad):
    usual = [1.0] * 25
    states, metrics = walk([*usual, bad, *usual[:3]])
    without, _ = walk([*usual, *usual[:3]])
    before, after = states[25], states[26]
    for want, got in zip(*(jax.tree.leaves((each.params, each.optimizer)) for each in (before, after)), strict=True):
        np.testing.assert_array_equal(got, want)
    assert int(after.step) == 26
    np.testing.assert_array_equal(states[-1].params["w"], without[-1].params["w"])
    assert [each["updates_skipped"] for each in metrics[24:]] == [0, 1, 1, 1, 1]
    assert [each[IN_A_ROW] for each in metrics[24:]] == [0, 1, 0, 0, 0]


def test_a_gradient_may_grow_slowly_and_be_large_before_anything_is_known():
    assert walk([100.0, *([1.0] * 30), 4.0])[1][-1]["updates_skipped"] == 0
    assert walk([1.03**n for n in range(60)])[1][-1]["updates_skipped"] == 0


def test_a_run_goes_on_after_a_few_and_ends_after_too_many(tmp_path):
    """At this learning rate, in float16, gradients overflow from an early step on, and for good."""
    text = tmp_path / "words.txt"
    text.write_text(TEXT, encoding="utf-8")
    changes = {"model__dtype": "float16", "optimizer__learning_rate": 300.0, "optimizer__clip_norm": None}
    summary = train(config(text, **changes, optimizer__skip_spikes={"in_a_row": 2}), tmp_path / "run")
    assert summary["state"] == "diverged"
    assert "updates_skipped_in_a_row 3" in summary["reason"]

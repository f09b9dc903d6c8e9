"""Penalties over many steps: gradients that are used again, strengths that are steered, and what a checkpoint keeps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import TypeAdapter

from tests.training.examples import TEXT, config, final_state, metrics_bytes
from tests.training.programs import DOUBLE, FAST_TO_COMPILE, batch, drawn, flat, program, walk
from wmresearch.algebra import FactoredMatrix, penalties
from wmresearch.config.optimizer import AdamWConfig, CosineSchedule
from wmresearch.config.penalty import Penalty, TargetNorm
from wmresearch.model.maps import make_maps
from wmresearch.training.interruption import StopRequest
from wmresearch.training.loop import train
from wmresearch.training.optimizers import make_optimizer, make_schedule
from wmresearch.training.parameters import ParameterFacts
from wmresearch.training.penalties import Penalties, steered
from wmresearch.training.run_directory import RunDirectory
from wmresearch.training.step import Given, Parts, make_loss, make_state, make_step

FACTORIZED = {"kind": "factorized", "rank": 3}


def test_between_its_steps_the_gradient_of_the_last_computed_one_is_added_as_it_was():
    """Seen in Adam's first moment: m ← β m + (1 − β)(clipped gradient + λ · gradient of the penalty)."""
    with jax.enable_x64(True):
        chosen = program(
            **DOUBLE, model__head_output=FACTORIZED, optimizer__clip_norm=0.05, optimizer__learning_rate=0.05,
            penalties=[{"kind": "frobenius", "strength": 3.0, "every": 3, "schedule": {"kind": "warmup", "steps": 4}}],
        )  # fmt: skip
        states, metrics = walk(chosen, drawn(chosen), 5)
        loss = make_loss(chosen.nats)
        decay = lambda params: penalties.frobenius(chosen.penalties[0].maps(params))
        options = {"compiler_options": FAST_TO_COMPILE}
        of_loss = jax.jit(jax.grad(lambda params, tokens: loss(params, tokens, None)[0]), **options)
        of_penalty = jax.jit(jax.value_and_grad(decay), **options)
        beta = chosen.config.optimizer.betas[0]
        moment = jax.tree.map(jnp.zeros_like, states[0].params)
        for step in range(5):
            gradient = of_loss(states[step].params, batch(step))
            norm = float(jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient))))
            assert norm > 0.05, "clipping has to be seen"
            value, added = of_penalty(states[step // 3 * 3].params)
            strength = 3.0 * min((step + 1) / 4, 1)
            moment = jax.tree.map(
                lambda m, g, p: beta * m + (1 - beta) * (g * 0.05 / norm + strength * p),  # noqa: B023
                moment, gradient, added,
            )  # fmt: skip
            found = states[step + 1].optimizer[2].mu
            for path, leaf in flat(moment).items():
                np.testing.assert_allclose(flat(found)[path], leaf, rtol=1e-9, atol=1e-13, err_msg=f"{path} at {step}")
            about = metrics[step]
            np.testing.assert_allclose(about["penalty/frobenius"], value, rtol=1e-12)
            np.testing.assert_allclose(about["penalty/frobenius_strength"], strength, rtol=1e-12)
            np.testing.assert_allclose(about["penalty/frobenius_added"], strength * value, rtol=1e-12)
            np.testing.assert_allclose(about["penalty/frobenius_share"], strength * value / about["train_loss"])
        kept = states[-1].memory["frobenius"]
        assert all("head_output" in path for path in flat(kept["gradient"])), "only heads' parameters have one"


@pytest.mark.parametrize("every", [1, 10, 50])
def test_a_gradient_that_is_used_again_reaches_the_right_spectrum_under_clipping(every):
    """Identity 9's toy: min ‖AB − D‖² + λ/2 (‖A‖² + ‖B‖²) has σ = (d − λ/2)₊, where n times the gradient at every
    n-th step would shrink nothing. The loss's gradient is clipped on the way, and not where it ends."""
    with jax.enable_x64(True):
        wanted, strength, steps = np.array([4.0, 2.0, 1.0, 0.2]), 0.5, 4000
        draw = np.random.default_rng(0)
        params = {name: jnp.asarray(draw.standard_normal((1, 4, 4))) for name in ("a", "b")}
        maps = lambda params: FactoredMatrix(params["a"], params["b"])

        def fit(params, tokens, key, rows):
            value = jnp.sum((maps(params).dense()[0] - jnp.diag(wanted)) ** 2)
            return value, {"train_loss": value}

        about = {"kind": "factor_decay", "strength": strength, "every": every}
        found = Penalties(
            [TypeAdapter(Penalty).validate_python(about)], maps, steps, group=1, chosen={"a": True, "b": True}
        )
        rates = AdamWConfig(learning_rate=0.05, weight_decay=0.0, clip_norm=2.0, schedule=CosineSchedule(final=0.0))
        optimizer = make_optimizer(rates, steps, dict.fromkeys(params, ParameterFacts("head_output", True)))
        step = make_step(
            fit, optimizer, make_schedule(rates.schedule, rates.learning_rate, steps), Parts(penalties=found)
        )
        tokens = jnp.zeros((1, 1), jnp.int32)
        run = jax.jit(lambda s: jax.lax.scan(lambda s, _: (step(s, tokens, Given())[0], None), s, length=steps)[0])
        end = run(make_state(params, optimizer, memory=found.start(params)))
        singular = np.linalg.svd(np.asarray(maps(end.params).dense()[0]), compute_uv=False)
        np.testing.assert_allclose(singular, np.maximum(wanted - strength / 2, 0), atol=3e-3)


def test_an_interrupted_run_goes_on_with_the_gradient_and_strength_that_it_had(text, tmp_path):
    """Bit for bit, stopped between two computations of each."""
    penalized = [
        {"kind": "frobenius", "target": {"value": 0.01, "gain": 0.5}, "every": 5},
        {"kind": "group_lasso", "strength": 2.0, "every": 7},
        {"kind": "factor_decay", "strength": 0.1},
    ]
    chosen = config(text, penalties=penalized, model__head_output=FACTORIZED, training__steps_per_dispatch=1,
                    training__log_every=1, training__diagnostics=False)  # fmt: skip
    train(chosen, tmp_path / "whole")
    stop = StopRequest()

    def report(progress):
        if progress.message == "training" and progress.step == 12:
            stop.signal = "SIGTERM"

    stopped = train(chosen, tmp_path / "stopped", report=report, stop=stop)
    assert stopped["state"] == "preempted" and 12 <= stopped["step"] < 15
    train(chosen, tmp_path / "stopped")
    assert metrics_bytes(tmp_path / "stopped") == metrics_bytes(tmp_path / "whole")
    assert final_state(tmp_path / "stopped", chosen).memory.keys() == {"frobenius", "group_lasso"}
    lines = [line for line in RunDirectory(tmp_path / "whole").metrics() if "train_loss" in line]
    values = [line["penalty/frobenius"] for line in lines]
    changed = [lines[at]["step"] for at in range(1, 20) if values[at] != values[at - 1]]
    assert changed == [6, 11, 16], "steps count from 1 there"
    strengths = {line["penalty/frobenius_strength"] for line in lines}
    assert len(strengths) == 4, "steered as often as it is computed"


def a_text(steps):
    """Tokens `[steps, 8, 9]`: characters of a text, from random places on."""
    symbols = {symbol: index for index, symbol in enumerate(sorted(set(TEXT)))}
    text = np.asarray([symbols[symbol] for symbol in TEXT])
    starts = np.random.default_rng(0).integers(0, len(text) - 9, (steps, 8, 1))
    return jnp.asarray(text[starts + np.arange(9)])


def at_the_end(target, steps=300):
    """The mean over heads and the last 50 steps of ‖M‖_F, and the strength at each step."""
    penalized = [] if target is None else [{"kind": "frobenius", "target": target}]
    chosen = program(
        optimizer__learning_rate=0.01, optimizer__weight_decay=0.0, optimizer__schedule={"kind": "constant"},
        model__head_output=FACTORIZED, penalties=penalized, training__steps=steps,
    )  # fmt: skip
    maps = make_maps(chosen.transformer)

    @jax.jit
    def run(state):
        def step(state, tokens):
            state, metrics = chosen.step(state, tokens, Given())
            return state, (jnp.mean(maps(state.params).frobenius_norm()), metrics.get("penalty/frobenius_strength", 0))

        return jax.lax.scan(step, state, a_text(steps))[1]

    norms, strengths = run(chosen.initial_state())
    return float(jnp.mean(norms[-50:])), np.asarray(strengths)


def test_a_target_is_kept_where_it_is_below_what_the_run_would_reach_and_let_alone_above():
    free, _ = at_the_end(None)
    held, _ = at_the_end({"value": free / 3, "gain": 0.5})
    assert held == pytest.approx(free / 3, rel=0.07)
    alone, strengths = at_the_end({"value": 2 * free})
    assert alone == pytest.approx(free, rel=0.03)
    assert strengths.max() < 1e-5, "λ falls below its initial 1e-3"


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_the_strength_follows_the_logarithm_of_how_far_the_mean_norm_is_from_the_target(norm):
    a = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 5, 2)))
    maps = FactoredMatrix(a, jnp.swapaxes(a, -1, -2))
    singular = np.linalg.svd(np.asarray(maps.dense()), compute_uv=False)
    mean = np.mean(np.sqrt((singular**2).sum(-1)) if norm == "frobenius" else singular.sum(-1))
    target = TargetNorm(norm=norm, value=2.0, gain=0.25, initial=0.5)
    strength, integral = jax.jit(lambda maps: steered(target, maps, jnp.log(0.7)))(maps)
    np.testing.assert_allclose(integral, np.log(0.7) + 0.25 * np.log(mean / 2), rtol=1e-5)
    np.testing.assert_allclose(strength, np.exp(integral) * (mean / 2) ** 4, rtol=1e-5)
    _, integral = jax.jit(lambda maps: steered(target, maps, jnp.log(0.7)))(FactoredMatrix(0 * a, maps.b))
    np.testing.assert_allclose(integral, np.log(0.5e-2), rtol=1e-5), "it does not fall without end"

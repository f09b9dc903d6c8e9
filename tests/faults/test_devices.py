"""A run goes on upon any number of devices: the same but for rounding; upon as many as before, bit for bit."""

import numpy as np
import pytest

from tests.training.examples import config, final_state, metrics_bytes, same
from wmresearch.training.interruption import StopRequest
from wmresearch.training.loop import train
from wmresearch.training.run_directory import RunDirectory

MESHES = {8: {"data": 2, "head": 4}, 4: {"data": 2, "head": 2}, 2: {"head": 2}, 1: None}


def run_on(text, devices):
    return config(
        text, model__n_heads=4, data__batch_size=8, training__steps=40, training__steps_per_dispatch=5,
        training__log_every=1, training__diagnostics=False, training__evaluate_every=None,
        optimizer__learning_rate=3e-3, parallel__mesh=MESHES[devices],
    )  # fmt: skip


def train_until(config, path, step):
    """Stops a run after a step, as a signal would."""
    stop = StopRequest()

    def report(progress):
        if progress.step >= step - 5:
            stop.signal = "SIGTERM"

    assert train(config, path, report=report, stop=stop)["step"] == step


def losses(path):
    return np.array([line["train_loss"] for line in RunDirectory(path).metrics() if "train_loss" in line])


@pytest.fixture(scope="module")
def alone(text, tmp_path_factory):
    path = tmp_path_factory.mktemp("alone") / "run"
    train(run_on(text, 1), path)
    return losses(path)


def test_from_eight_devices_to_four_to_two_to_one(text, alone, tmp_path):
    for devices, step in ((8, 10), (4, 20), (2, 30)):
        train_until(run_on(text, devices), tmp_path / "run", step)
    train(run_on(text, 1), tmp_path / "run")
    assert len(alone) == 40
    np.testing.assert_allclose(losses(tmp_path / "run"), alone, rtol=1e-5)


def test_upon_four_devices_again_the_bits_are_those_of_a_run_that_was_not_stopped(text, alone, tmp_path):
    chosen = run_on(text, 4)
    train(chosen, tmp_path / "whole")
    train_until(chosen, tmp_path / "run", 10)
    train(chosen, tmp_path / "run")
    assert metrics_bytes(tmp_path / "run") == metrics_bytes(tmp_path / "whole")
    assert same(*(final_state(tmp_path / name, chosen) for name in ("run", "whole")))
    assert not np.array_equal(losses(tmp_path / "run"), alone), "another order of sums: this test can tell"

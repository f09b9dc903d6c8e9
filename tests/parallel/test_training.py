"""Runs on several devices are the runs on one, but for rounding."""

import json

import jax
import numpy as np
import pytest

from tests.training.examples import TEXT, config
from tests.training.programs import DOUBLE, VOCAB, program
from wmresearch.config import ConfigError
from wmresearch.data import Stream
from wmresearch.reports.mesh import step_collectives
from wmresearch.training.loop import train

ROOM = 4


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


class Steps:
    """The losses and the last state of a program's steps on random tokens."""

    def __init__(self, steps=6, **changes):
        made = program(**{"model__n_heads": 8, "data__batch_size": 8, "training__steps": steps} | changes)
        draw = np.random.default_rng(0)
        stream = Stream(draw.integers(0, VOCAB, 2000), made.config.data.batch_size, made.config.model.context, 0)
        state, dispatch = made.placed(made.initial_state()), made.dispatch(ROOM)
        losses = []
        for first in range(0, steps, ROOM):
            n = min(ROOM, steps - first)
            state, found = dispatch(state, made.batches(stream, first, n, ROOM), n, made.given())
            losses.append(np.asarray(found["train_loss"])[:n])
        self.losses, self.state = np.concatenate(losses), made.gathered(state)
        self.metrics = {name: float(values[n - 1]) for name, values in found.items()}

    def agree(self, other, tolerance):
        np.testing.assert_allclose(other.losses, self.losses, rtol=tolerance)
        for want, got in zip(*(jax.tree.leaves(each.state.params) for each in (self, other)), strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)
        for name, value in self.metrics.items():
            assert other.metrics[name] == pytest.approx(value, rel=tolerance, abs=tolerance), name


def on(data, head, **options):
    return {f"parallel__{name}": value for name, value in ({"mesh": {"data": data, "head": head}} | options).items()}


def test_ten_steps_on_one_two_four_and_eight_devices():
    one = Steps(10).losses
    for data, head in ((2, 1), (1, 2), (2, 2), (2, 4), (1, 8)):
        np.testing.assert_allclose(Steps(10, **on(data, head)).losses, one, rtol=1e-5)


def test_three_hundred_steps_stay_together(float64):
    """Through a schedule with warm-up, clipping and decay: rounding does not grow."""
    changes = DOUBLE | {"optimizer__learning_rate": 3e-3}
    Steps(300, **changes).agree(Steps(300, **changes, **on(2, 4)), 1e-9)


SIX_HEADS = {"model__n_heads": 6, "model__d_model": 18}
"""Which four devices do not divide evenly."""
RANKS = {"kind": "dynamic_rank", "bucket": 1}
CASES = {
    "muon": SIX_HEADS | {"optimizer__kind": "muon", "optimizer__heads": "per_head"},
    "muon fused": SIX_HEADS | {"optimizer__kind": "muon", "optimizer__heads": "fused"},
    "penalties": SIX_HEADS | {
        "penalties": [{"kind": "nuclear", "strength": 0.1, "every": 2}, {"kind": "head_overlap", "strength": 0.1}],
        "optimizer__frobenius_decay": 0.1,
    },
    "proximal": SIX_HEADS | {
        "model__head_output": {"kind": "factorized", "rank": 3},
        "penalties": [{"kind": "nuclear", "strength": 0.1, "step": "proximal"}],
    },
    "maps of the heads' own": SIX_HEADS | {"model__head_output": {"kind": "dense"}},
    "places exchanged": SIX_HEADS | {
        "model__head_output": {"kind": "sparse", "density": 0.3, "method": {"kind": "rigl", "every": 2}}
    },
    "gates": {"model__head_output": RANKS | {
        "rank": 4, "total_rank": 12, "fine_tune_steps": 2, "method": "hard_concrete"
    }},
    "importance": SIX_HEADS | {"model__head_output": RANKS | {
        "rank": 3, "total_rank": 12, "fine_tune_steps": 2, "method": "budgeted"
    }},
    "parts of a batch, dropout": {"execution__accumulate": 2, "model__dropout": 0.1},
    "layers scanned": {
        "model__n_layers": 2, "execution__scan_layers": True, "execution__remat": "layers", "execution__logits_block": 7
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_whatever_a_step_does(case, float64):
    changes = DOUBLE | CASES[case]
    Steps(**changes).agree(Steps(**changes, **on(2, 4)), 1e-10)


@pytest.mark.parametrize("options", [{"shard_optimizer": True, "shard_positions": True}, {"implementation": "jit"}])
def test_however_it_is_carried_out(options, float64):
    Steps(**DOUBLE).agree(Steps(**DOUBLE, **on(2, 4, **options)), 1e-10)


@pytest.mark.parametrize("method", ["hard_concrete", "nested", "budgeted"])
def test_what_a_part_of_a_step_leaves_alone_is_not_exchanged(method):
    """Gates are drawn, and importance is kept, in the order of the heads: the embedding stays where it is."""
    output = RANKS | {"rank": 2, "total_rank": 12, "fine_tune_steps": 2, "method": method}
    made = program(model__n_heads=8, data__batch_size=8, model__head_output=output, **on(1, 4))
    found = step_collectives(made.config, VOCAB)
    rows = (VOCAB, VOCAB + -VOCAB % 4)
    outside = [array.shape for each in found if "shard_map" not in each.source for array in each.arrays]
    assert not [shape for shape in outside if any(size in rows for size in shape)]


def test_moments_are_divided_over_the_data_axis_where_that_is_asked_for():
    made = program(model__n_heads=8, data__batch_size=8, **on(2, 4, shard_optimizer=True))
    state = made.placed(made.initial_state())
    held = lambda tree: sum(leaf.addressable_shards[0].data.size for leaf in jax.tree.leaves(tree))
    assert held(state.optimizer) < 0.55 * 2 * held(state.params) + 20  # two moments, and counters


def test_parts_of_a_batch_are_the_batch(float64):
    """One device; dropout is drawn by a row's number, wherever the row comes."""
    changes = DOUBLE | {"model__dropout": 0.2}
    Steps(**changes).agree(Steps(**changes, execution__accumulate=4), 1e-11)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_a_run_whose_heads_lose_directions(text, tmp_path):
    """Training, evaluation, diagnostics, cuts and checkpoints; stopped on one mesh, it goes on upon another."""
    ranks = RANKS | {"rank": 4, "total_rank": 7, "fine_tune_steps": 4, "method": "energy"}
    changes = DOUBLE | {
        "model__head_output": ranks, "model__n_heads": 4, "model__context": 8, "training__steps": 12,
        "training__checkpoint_every": 4,
    }  # fmt: skip
    alone = train(config(text, **changes), tmp_path / "alone")
    train_until(config(text, **changes, **on(1, 3)), tmp_path / "moved", 8)
    moved = train(config(text, **changes, **on(4, 2)), tmp_path / "moved")
    assert moved["validation_loss"] == pytest.approx(alone["validation_loss"], rel=1e-9)
    assert lines(tmp_path / "moved", "ranks") == lines(tmp_path / "alone", "ranks")
    for want, got in zip(*(lines(tmp_path / name, "metrics") for name in ("alone", "moved")), strict=True):
        assert got == pytest.approx(want, rel=1e-8, abs=1e-8)
    *_, alone_last = lines(tmp_path / "alone", "diagnostics")
    *_, moved_last = lines(tmp_path / "moved", "diagnostics")
    assert alone_last["lambda_eff"][0] > 0
    for name in ("lambda_eff", "nuclear_norm"):
        np.testing.assert_allclose(moved_last[name], alone_last[name], rtol=1e-7)


def test_a_run_on_text_and_tasks(text, tmp_path, float64):
    """Each device has its rows of the mixture, and the scores are those of one device."""
    changes = DOUBLE | {"data__mixture": {"recall": 0.4, "induction": 0.3}, "data__batch_size": 8}
    changes |= {"model__n_heads": 4, "training__steps": 5}
    alone, divided = (train(config(text, **changes, **more), tmp_path / f"{more}"[:9]) for more in ({}, on(4, 2)))
    for name in ("train_loss", "validation_loss", "recall_accuracy", "induction_accuracy", "induction_gain"):
        assert divided[name] == pytest.approx(alone[name], rel=1e-9, abs=1e-9), name


def train_until(config, path, step):
    """Trains a run up to a dispatch's end, as a signal would stop it."""
    from wmresearch.training.interruption import StopRequest

    stop = StopRequest()

    def report(progress):
        if progress.step >= step - 4:
            stop.signal = "SIGTERM"

    assert train(config, path, report=report, stop=stop)["state"] == "preempted"


def lines(path, name):
    return [json.loads(line) for line in (path / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("mesh", "batch", "said"),
    [
        ({"data": 4, "head": 8}, 8, ["data 4 × head 8 = 32 devices", "at most 8", "1 × 8, 2 × 4, 4 × 2, 8 × 1"]),
        ({"data": 12}, 12, ["data 12 × head 1 = 12 devices", "2 × 4, 4 × 2, 3 × 2, 6 × 1"]),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused_with_those_that_do(mesh, batch, said):
    with pytest.raises(ConfigError) as refused:
        program(model__n_heads=8, data__batch_size=batch, parallel__mesh=mesh)
    for text in said:
        assert text in str(refused.value)


@pytest.mark.parametrize(
    ("mesh", "batch", "sizes"),
    [
        ({"data": "auto"}, 8, (8, 1)),
        ({"data": "auto", "head": 2}, 6, (3, 2)),
        ({"data": 2, "head": "auto"}, 6, (2, 4)),
        ({"data": "auto", "head": "auto"}, 3, (3, 2)),
    ],
)
def test_auto_is_the_largest_size_that_fits(mesh, batch, sizes):
    made = program(model__n_heads=8, data__batch_size=batch, parallel__mesh=mesh)
    shape = made.arrangement.mesh.shape
    assert (shape["data"], shape["head"] * shape["copy"]) == sizes

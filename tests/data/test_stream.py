"""Laws of the stream: a batch is a function of the step alone, an epoch has each window once, seeds are independent."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from wmresearch.config import ConfigError
from wmresearch.data import Stream, evaluation_windows

TOKENS = np.arange(10_007, dtype=np.uint16)  # each token is its own place
SIZES = st.tuples(st.integers(1, 9), st.integers(1, 40), st.integers(0, 2**32 - 1))


def test_a_batch_is_the_same_whatever_came_before() -> None:
    one, other = Stream(TOKENS, 8, 32, 0), Stream(TOKENS, 8, 32, 0)
    steps = [5, 0, 10**9, 3, 5, 77]
    batches = {step: one.batch(step) for step in steps}
    for step in sorted(steps):
        np.testing.assert_array_equal(other.batch(step), batches[step])
    assert batches[0].shape == (8, 33)
    assert batches[0].dtype == np.int32


@given(SIZES, st.integers(0, 10**9), st.lists(st.integers(0, 9), max_size=4))
def test_rows_of_several_processes_are_the_whole_batch(sizes, step: int, borders: list[int]) -> None:
    batch_size, context, seed = sizes
    stream = Stream(TOKENS, batch_size, context, seed)
    edges = [0, *sorted(min(border, batch_size) for border in borders), batch_size]
    parts = [stream.batch(step, slice(low, high)) for low, high in pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate(parts), stream.batch(step))


@given(SIZES, st.integers(0, 10**9), st.integers(1, 5))
def test_several_steps_at_once_are_the_steps_one_by_one(sizes, first: int, n: int) -> None:
    stream = Stream(TOKENS, *sizes)
    expected = np.stack([stream.batch(step) for step in range(first, first + n)])
    np.testing.assert_array_equal(stream.batches(first, n), expected)


@given(st.integers(2, 400), st.integers(1, 60), st.integers(0, 2**32 - 1), st.integers(0, 10**6))
def test_each_stretch_of_the_text_is_visited_exactly_once_an_epoch(n: int, context: int, seed: int, epoch: int) -> None:
    context = min(context, n - 1)
    stream = Stream(TOKENS[:n], 1, context, seed)
    per_epoch = stream.windows_per_epoch
    windows = stream.batches(epoch * per_epoch, per_epoch)[:, 0]
    assert (np.diff(windows, axis=1) == 1).all()  # consecutive tokens
    starts = windows[:, 0]
    if per_epoch > 1:
        assert sorted(starts // context) == list(range(per_epoch))
    assert starts.min() >= 0 and starts.max() + context < n
    assert (
        n - per_epoch * context < 2 * context or per_epoch == 1
    )  # less than two stretches have no window of their own


def test_offsets_within_a_stretch_are_uniform() -> None:
    starts = np.concatenate([Stream(TOKENS, 300, 32, seed).batch(0)[:, 0] for seed in range(40)])
    counts = np.bincount(starts % 32, minlength=32)
    assert scipy.stats.chisquare(counts).pvalue > 1e-4


def test_epochs_differ_in_borders_and_order() -> None:
    stream = Stream(TOKENS, 1, 32, 0)
    per_epoch = stream.windows_per_epoch
    epochs = [stream.batches(epoch * per_epoch, per_epoch)[:, 0, 0] for epoch in range(40)]
    assert len({tuple(np.sort(starts) % 32) for starts in epochs}) == 40
    orders = {tuple(starts // 32) for starts in epochs}
    assert len(orders) == 40


def test_seeds_give_independent_orders() -> None:
    starts = np.stack([Stream(TOKENS, 300, 32, seed).batch(0)[:, 0] for seed in range(20)])
    correlation = np.corrcoef(starts)[np.triu_indices(20, 1)]
    assert np.abs(correlation).max() < 0.25  # 190 pairs of 300: 1 / sqrt(300) = .058 each
    first = Stream(TOKENS, 300, 32, 0).batch(0)
    np.testing.assert_array_equal(first, Stream(TOKENS, 300, 32, 0).batch(0))
    assert np.abs(np.corrcoef(np.arange(300), starts[0])[0, 1]) < 0.25  # and they are shuffled


def test_threads_see_the_same_batches() -> None:
    stream = Stream(TOKENS, 8, 32, 1)
    steps = list(range(200)) * 2
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(stream.batch, steps))
    for step, batch in zip(steps, batches, strict=True):
        np.testing.assert_array_equal(batch, stream.batch(step))


def test_a_text_shorter_than_a_window_is_said() -> None:
    with pytest.raises(ConfigError, match=r"(?s)model\.context = 10.*at most 9, since the train split has 10 tokens"):
        Stream(TOKENS[:10], 1, 10, 0)
    assert Stream(TOKENS[:10], 2, 9, 0).batch(7).tolist() == [list(range(10))] * 2


@given(st.integers(2, 300), st.integers(1, 70))
def test_evaluation_predicts_every_token_but_the_first_exactly_once(n: int, context: int) -> None:
    tokens = TOKENS[100 : 100 + n]
    inputs, targets, mask = evaluation_windows(tokens, context)
    assert inputs.shape == targets.shape == mask.shape == (-(-(n - 1) // context), context)
    assert (inputs.dtype, targets.dtype, mask.dtype) == (np.int32, np.int32, np.bool_)
    np.testing.assert_array_equal(targets[mask], tokens[1:])
    np.testing.assert_array_equal(inputs[mask], tokens[:-1])
    assert mask[:-1].all()  # only the last window is padded
    assert not inputs[~mask].any() and not targets[~mask].any()


def test_nothing_to_predict_is_said() -> None:
    with pytest.raises(ValueError, match="expected at least 2"):
        evaluation_windows(TOKENS[:1], 4)

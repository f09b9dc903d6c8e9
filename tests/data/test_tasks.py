"""Tasks whose answer is known: maps and what missing directions cost; keys and their values; what is repeated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmresearch.data.tasks import Channels, Induction, Recall, Symbols, training_row

TASK = Channels(width=12, ranks=(1, 4, 2), context=9, seed=3, noise=1.5)


def test_channels_have_the_ranks_and_singular_values_that_they_say():
    for found, rank in zip(TASK.maps(), TASK.ranks, strict=True):
        np.testing.assert_allclose(np.linalg.svd(found)[1], [1.0] * rank + [0.0] * (12 - rank), atol=1e-12)


def test_a_batch_is_a_function_of_seed_and_step():
    for one, other in zip(TASK.batch(5, 3), TASK.batch(5, 3), strict=True):
        assert (one == other).all()
    assert (TASK.batch(5, 3)[0] != TASK.batch(6, 3)[0]).any()


def test_a_channel_copies_from_so_many_tokens_before():
    x, y = Channels(12, (1, 4, 2), 9, seed=3, noise=0.0).batch(0, 2)
    maps = TASK.maps()
    for t in range(9):
        expected = sum(x[:, t - i] @ maps[i] for i in range(3) if t >= i)
        np.testing.assert_allclose(y[:, t], expected, atol=1e-12)


def test_a_missing_direction_costs_what_the_docstring_says():
    """As counted from the maps, and as measured over a batch at the positions that all channels reach."""
    maps = TASK.maps()
    u, s, vt = np.linalg.svd(maps[1])
    cut = maps.copy()
    cut[1] = maps[1] - u[:, :1] * s[0] @ vt[:1]
    assert TASK.cost_of(cut) == pytest.approx(1 / (2 * 1.5**2))
    x, y = TASK.batch(0, 4000)
    nats = []
    for each in (maps, cut):
        guess = np.einsum("hts,bsd,hde->bte", TASK.attention(), x, each, optimize=True)
        nats.append(np.square(y - guess)[:, 2:].sum(axis=-1).mean() / (2 * 1.5**2))
    assert nats[1] - nats[0] == pytest.approx(TASK.cost_of(cut), rel=0.05)


RUNS = st.tuples(st.integers(2, 200), st.integers(4, 130), st.integers(0, 2**32 - 1))
"""Different symbols of a text, tokens of a row, seed."""


def symbols_of(count, seed=0, context=255):
    return Symbols.of(np.random.default_rng(1).permutation(np.arange(count).repeat(3)), context, seed)


@given(RUNS, st.data())
def test_each_key_that_is_asked_was_given_its_answer_before(run, data):
    count, length, seed = run
    task = Recall(symbols_of(count, seed), length, seed)
    n = data.draw(st.sampled_from(task.sizes))
    row = task.row(n, "here", data.draw(st.integers(0, 10**9)))
    assert row.shape == (length,)
    keys, values = row[: 2 * n : 2].tolist(), row[1 : 2 * n : 2].tolist()
    assert len(set(keys)) == len(set(values)) == n
    assert set(keys) <= set(task.symbols.keys) and set(values) <= set(task.symbols.values)
    answer = dict(zip(keys, values, strict=True))
    rest = row[2 * n :].tolist()
    assert rest[1::2] == [answer[key] for key in rest[::2]][: len(rest) // 2]
    assert sorted(row[task.asked(n)]) == sorted(keys), "each once"
    for start in range(0, len(rest) - 2 * n + 1, 2 * n):
        assert sorted(rest[start : start + 2 * n : 2]) == sorted(keys), "and again only after all others"


@given(RUNS, st.data())
def test_a_repeated_row_is_known_from_its_first_copy(run, data):
    count, length, seed = run
    task = Induction(symbols_of(count, seed), length, seed)
    n = data.draw(st.sampled_from(task.sizes))
    row = task.row(n, "here", data.draw(st.integers(0, 10**9)))
    assert row.shape == (length,) and len(set(row[:n].tolist())) == n
    assert (row[n:] == row[:-n]).all()
    first, second = (np.arange(length)[copy] + 1 for copy in task.copies(n))
    assert first.tolist() == list(range(1, n)) and (second == first + n).all() and second[-1] < length


@given(RUNS)
def test_sizes_are_those_that_have_room(run):
    count, length, seed = run
    recall, induction = (kind(symbols_of(count, seed), length, seed) for kind in (Recall, Induction))
    most = min(length // 4, min(count, 128) // 2)
    assert list(recall.sizes) == list(range(1, most + 1))
    assert recall.curve == tuple(n for n in (2, 4, 8, 16, 32, 64) if n <= most)
    assert list(induction.sizes) == list(range(2, min(length // 2, count, 128) + 1))


def test_rows_have_neither_memory_nor_neighbours():
    """A row follows from its arguments: the same in any order, and another for each."""
    for task in (Recall(symbols_of(90), 65, 3), Induction(symbols_of(90), 65, 3)):
        rows = {(n, use, i): task.row(n, use, i).tobytes() for n in (4, 16) for use in "ab" for i in range(50)}
        assert len(set(rows.values())) == len(rows)
        assert all(task.row(*key).tobytes() == row for key, row in reversed(rows.items()))
        other = type(task)(task.symbols, 65, 4)
        assert not {other.row(*key).tobytes() for key in rows} & set(rows.values())


def test_no_row_of_an_evaluation_is_trained_on():
    """Nor the part of it that is asked."""
    for task in (Recall(symbols_of(98), 65, 0), Induction(symbols_of(98), 65, 0)):
        n = task.sizes[-1]
        end = 4 * n if isinstance(task, Recall) else n
        trained = {training_row(task, i)[:end].tobytes() for i in range(3000)}
        assert not trained & {task.row(n, "evaluation", i)[:end].tobytes() for i in range(128)}


def test_rows_of_training_have_every_size():
    task = Induction(symbols_of(98), 33, 0)
    rows = (training_row(task, i) for i in range(600))
    sizes = [next(n for n in task.sizes if (row[n:] == row[:-n]).all()) for row in rows]
    counts = np.bincount(sizes, minlength=17)[2:]
    assert len(counts) == 15 and counts.min() > 20 and counts.max() < 70


def test_the_symbols_are_the_most_frequent_and_the_seed_deals_them_out():
    tokens = np.repeat(np.arange(300), np.arange(300)).astype(np.uint16)
    dealt = [Symbols.of(tokens, 300, seed) for seed in (0, 0, 1)]
    for symbols in dealt:
        assert sorted([*symbols.keys, *symbols.values]) == list(range(172, 300))
        assert len(symbols.keys) == len(symbols.values) == 64
    assert (dealt[0].keys == dealt[1].keys).all() and set(dealt[0].keys) != set(dealt[2].keys)
    less = Symbols.of(tokens, 16, 0)
    assert sorted([*less.keys, *less.values]) == list(range(292, 300)), "as many as 16 positions need"
    few = Symbols.of(np.array([7, 7, 7], np.uint8), 16, 0)
    assert (few.keys.tolist(), few.values.tolist()) == ([], [7])


def test_rows_are_the_same_on_every_machine():
    """They are part of the results of runs: these numbers may not change."""
    symbols = symbols_of(40)
    recall = [20, 36, 16, 31, 29, 19, 29, 19, 20, 36, 16, 31, 20, 36, 16, 31]
    assert Recall(symbols, 16, 5).row(3, "training", 7).tolist() == recall
    assert Induction(symbols, 16, 5).row(5, "training", 7).tolist() == 3 * [32, 35, 17, 25, 33] + [32]

"""Batches of text and tasks: which rows are which, and that they do not depend on who asks for them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmresearch.config import ConfigError
from wmresearch.config.data import MixtureConfig
from wmresearch.data import Stream
from wmresearch.data.mixture import Mixture
from wmresearch.data.tasks import Induction, Recall, Symbols, training_row

TOKENS = np.random.default_rng(0).integers(0, 60, 3000).astype(np.uint8)
SHARES = MixtureConfig(recall=0.2, induction=0.15)


def kinds(batch_size, first, steps, shares=SHARES, context=24, seed=1):
    """0 text, 1 recall, 2 induction: of each row of so many steps, which has to be exactly the one it should be."""
    mixed, text = (made(batch_size, context, seed) for made in (lambda *a: Mixture(shares, TOKENS, *a), plain))
    tasks = [kind(Symbols.of(TOKENS, context, seed), context + 1, seed) for kind in (Recall, Induction)]
    found = np.empty((steps, batch_size), int)
    for step in range(steps):
        rows, texts = mixed.batch(first + step), text.batch(first + step)
        for place, row in enumerate(rows):
            index = (first + step) * batch_size + place
            own = [texts[place], *(training_row(task, index) for task in tasks)]
            (found[step, place],) = [kind for kind, expected in enumerate(own) if (row == expected).all()]
    return found


def plain(*like):
    return Stream(TOKENS, *like)


@pytest.mark.parametrize(("batch_size", "first"), [(16, 0), (5, 900), (32, 10**6)])
def test_each_task_has_its_share_of_every_batch_and_text_keeps_its_rows(batch_size, first):
    found = kinds(batch_size, first, 40)
    for kind, share in ((1, SHARES.recall), (2, SHARES.induction)):
        counts = (found == kind).sum(axis=1)
        assert abs(counts - share * batch_size).max() < 2.5, "in each batch"
        assert abs(counts.mean() - share * batch_size) < 0.1, "and over many"


def test_all_rows_may_be_of_one_task():
    assert (kinds(8, 3, 2, MixtureConfig(induction=1.0)) == 2).all()
    assert (kinds(8, 3, 2, MixtureConfig(recall=1.0)) == 1).all()


@given(st.integers(0, 10**7), st.integers(0, 12), st.integers(0, 12))
def test_rows_of_several_devices_are_the_whole_batch(step, one, other):
    mixed = Mixture(SHARES, TOKENS, 12, 24, 1)
    start, stop = sorted((one, other))
    whole = mixed.batch(step)
    parts = [mixed.batch(step, slice(*ends)) for ends in ((stop, 12), (0, start), (start, stop))]
    assert (np.concatenate([parts[1], parts[2], parts[0]]) == whole).all()
    assert (mixed.batches(step, 2)[0] == whole).all()
    assert (mixed.batches(step, 2)[1] == Mixture(SHARES, TOKENS, 12, 24, 1).batch(step + 1)).all()


def test_tasks_without_room_are_refused():
    with pytest.raises(ConfigError, match=r"data\.mixture\.recall"):
        Mixture(SHARES, TOKENS, 4, 2, 0)
    with pytest.raises(ConfigError, match=r"data\.mixture\.induction"):
        Mixture(MixtureConfig(induction=0.5), np.zeros(100, np.uint8), 4, 24, 0)

"""The task whose answer is known: what its maps are, and what missing directions cost."""

import numpy as np
import pytest

from wmresearch.data.tasks import Channels

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

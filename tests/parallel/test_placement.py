"""Which head lives where: each once, with its group, and none of them where there is no room to spare."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parallel.examples import arrangement_of, drawn, model, transformer_of
from wmresearch.head_output.rank_layout import RankLayout
from wmresearch.head_output.weights import PADDING
from wmresearch.parallel.placement import choose_shards, make_placement, rounds


@st.composite
def grouped_models(draw):
    key_heads, group = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    heads = key_heads * group
    return model(n_heads=heads, n_kv_heads=key_heads, d_model=2 * heads)


@settings(max_examples=60)
@given(grouped_models(), st.integers(1, 8))
def test_every_head_has_one_place_with_its_key_head(config, devices):
    placement = make_placement(config, transformer_of(config), devices)
    (apart, copies), places = placement.shards, placement.layers[0]
    assert apart * copies == devices
    heads = np.array(places.heads).reshape(devices, -1)
    key_heads = np.array(places.key_heads).reshape(apart, -1)
    assert sorted(number for number in places.heads if number != PADDING) == list(range(config.n_heads))
    assert sorted(number for number in places.key_heads if number != PADDING) == list(range(config.kv_heads))
    group = config.n_heads // config.kv_heads
    for device in range(devices):
        own = [number for number in heads[device] if number != PADDING]
        assert {number // group for number in own} <= set(key_heads[device // copies])
        by_key_head = heads[device].reshape(key_heads.shape[1], -1)
        for key_head, row in zip(key_heads[device // copies], by_key_head, strict=True):
            assert all(number == PADDING or number // group == key_head for number in row)


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 64))
def test_no_device_has_more_places_than_it_must(key_heads, group, devices):
    """Not more than where key heads are not copied, and as few as can be where all divide evenly."""
    apart, copies = choose_shards(key_heads, group, devices)
    places = -(-key_heads // apart) * -(-group // copies)
    assert places <= -(-key_heads // devices) * group
    if key_heads % devices == 0:
        assert (apart, copies) == (devices, 1)
    elif devices % key_heads == 0 and group % (devices // key_heads) == 0:
        assert (apart, copies) == (key_heads, devices // key_heads)


def test_heads_that_divide_evenly_stay_where_they_are():
    for config, devices in ((model(), 2), (model(n_heads=8, n_kv_heads=2), 4)):
        assert make_placement(config, transformer_of(config), devices).layers[0].heads == tuple(range(config.n_heads))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 5))
def test_rounds_take_the_least_places_that_equal_devices_can_have(ranks, parts):
    """No way to deal equal numbers of heads has a lower sum over places of the widest head at each."""
    widths = sorted(ranks, reverse=True)
    dealt = rounds(len(ranks), parts)
    rows = list(zip(*dealt, strict=True))
    assert sorted(head for row in rows for head in row if head != PADDING) == list(range(len(ranks)))
    found = sum(max(widths[head] for head in row if head != PADDING) for row in rows)
    assert found == sum(widths[::parts])  # the place of the k-th widest of `parts` heads is at least as wide as it
    held = [sum(widths[head] for head in part if head != PADDING) for part in dealt]
    assert max(held) - min(held) <= widths[0]


def test_rounds_turn_so_that_devices_hold_nearly_as_much():
    assert rounds(4, 2) == [[0, 3], [1, 2]]
    assert rounds(5, 3) == [[0, PADDING], [1, 4], [2, 3]]


@settings(max_examples=25)
@given(st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any), st.integers(1, 4), st.integers(1, 2))
def test_directions_stay_with_their_heads(ranks, devices, group):
    """Every direction has one place, in its own head's part, and a row of B for each query head."""
    config = model(
        {"kind": "dynamic_rank", "ranks": [ranks], "bucket": 1},
        n_heads=3 * group, n_kv_heads=3, d_model=6 * group, d_head=4,
    )  # fmt: skip
    placement = make_placement(config, transformer_of(config), devices)
    places, apart = placement.layers[0], placement.shards[0]
    old = RankLayout.of(tuple(ranks), 1, group)
    assert sorted(place for place in places.directions if place != PADDING) == list(range(old.width))
    assert sorted(row for row in places.rows if row != PADDING) == list(range(old.width * group))
    columns = np.array(places.directions).reshape(apart, -1)
    owner = np.repeat(np.arange(len(old.heads)), old.widths)
    for part, heads in zip(columns, np.array(places.key_heads).reshape(apart, -1), strict=True):
        for place, (_, inside) in enumerate(places.layout.places()):
            own = part[inside]
            assert set(owner[own[own != PADDING]]) <= {heads[place]}


@pytest.mark.parametrize("devices", [1, 3, 4])
def test_what_is_arranged_is_restored(devices):
    """And empty places are zero: moments at them stay so."""
    config = model({"kind": "dynamic_rank", "ranks": [[4, 1, 3, 0]], "bucket": 2}, bias=True, param_dtype="float32")
    arrangement = arrangement_of(transformer_of(config), config, 1, devices)
    params = {"mu": drawn(arrangement.transformer), "count": np.zeros(())}
    arranged = arrangement.arrange(params)
    attention = arranged["mu"]["blocks"][0]["attention"]
    heads = np.array(arrangement.placement.layers[0].heads)
    assert attention["query"].shape[1] == len(heads)
    assert not np.asarray(attention["query"])[:, heads == PADDING].any()
    there = arrangement.put(params)
    for found in (arrangement.restore(arranged), arrangement.gathered(there), arrangement.restored(there)):
        for want, got in zip(*map(jax.tree.leaves, (params, found)), strict=True):
            np.testing.assert_array_equal(got, want)

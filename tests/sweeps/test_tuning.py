"""Which values are tried next: laws that hold whatever the losses are."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmresearch.sweeps.tuning import points, search

RATES = [1.0, 2.0, 4.0, 8.0]
ANY = lambda _arm, _point: True


def bowl(best):
    """A loss that is lowest at a value, by ratio."""
    return lambda value: abs(math.log(value / best))


@given(st.lists(st.floats(0.01, 1000), min_size=1, max_size=4), st.integers(0, 4))
def test_every_arm_tries_as_many_values_and_chooses_the_best_of_them(optima, limit):
    losses = [bowl(best) for best in optima]
    found, last = search([{"rate": RATES}] * len(optima), lambda arm, point: losses[arm](point["rate"]), limit, ANY)
    assert last
    assert len({len(arm.grid["rate"]) for arm in found}) == 1
    assert 0 <= len(found[0].grid["rate"]) - len(RATES) <= limit
    for loss, arm in zip(losses, found, strict=True):
        values = arm.grid["rate"]
        assert values == sorted(set(values)) and set(RATES) <= set(values)
        assert all(b / a == 2 for a, b in itertools.pairwise(values)), "the series goes on"
        assert arm.best == {"rate": min(values, key=loss)}
        assert (arm.edges == ("rate",)) == (arm.best["rate"] in (values[0], values[-1]))
        if arm.edges:
            assert len(values) == len(RATES) + limit, "an edge is left only where the limit is reached"


@given(st.floats(1.5, 7), st.floats(1.5, 7))
def test_optima_inside_cost_nothing_more(one, other):
    best = [bowl(one), bowl(other)]
    inside = all(min(RATES, key=loss) in RATES[1:-1] for loss in best)
    found, _ = search([{"rate": RATES}] * 2, lambda arm, point: best[arm](point["rate"]), 2, ANY)
    assert (found[0].grid["rate"] == RATES) == inside


def test_two_keys_grow_by_whole_rows():
    loss = lambda arm, point: bowl(4)(point["rate"]) + bowl((1, 30)[arm])(point["decay"])
    found, _ = search([{"rate": RATES, "decay": [1, 2, 3]}] * 2, loss, 2, ANY)
    assert [arm.grid["rate"] for arm in found] == [RATES, RATES]
    assert [arm.grid["decay"] for arm in found] == [[1, 2, 3, 4, 5]] * 2, "there is no whole number below 1"
    assert found[1].edges == ("decay",) and found[1].best == {"rate": 4.0, "decay": 5}
    assert len(points(found[0].grid)) == len(points(found[1].grid)) == 20


def test_diverged_points_are_infinitely_bad_and_all_of_them_lead_down():
    high = lambda _, point: math.inf if point["rate"] > 0.5 else point["rate"]
    found, _ = search([{"rate": RATES}], high, 3, ANY)
    assert found[0].grid["rate"] == [0.125, 0.25, 0.5, *RATES]
    assert found[0].best == {"rate": 0.125} and found[0].edges == ("rate",)
    found, _ = search([{"rate": RATES}], lambda _arm, _point: math.inf, 1, ANY)
    assert found[0].best == {"rate": 0.5}


def test_zero_is_no_edge_below_and_words_have_none():
    loss = lambda _, point: point["decay"]
    found, _ = search([{"decay": [0.0, 0.1, 0.2]}], loss, 2, ANY)
    assert (found[0].grid["decay"], found[0].edges) == ([0.0, 0.1, 0.2], ())
    found, _ = search([{"norm": ["a", "b"]}], lambda _, point: len(point), 2, ANY)
    assert (found[0].grid["norm"], found[0].edges, found[0].best) == (["a", "b"], (), {"norm": "a"})


def test_a_value_that_an_arm_cannot_have_is_replaced_by_one_at_the_other_end():
    found, _ = search(
        [{"rate": RATES}] * 2, lambda _, point: -point["rate"], 1, lambda arm, point: arm == 0 or point["rate"] < 9
    )
    assert [arm.grid["rate"] for arm in found] == [[*RATES, 16.0], [0.5, *RATES]]
    assert found[1].best == {"rate": 8.0} and found[1].edges == ("rate",)


def test_nothing_is_decided_while_a_run_is_waited_for():
    found, last = search([{"rate": RATES}] * 2, lambda arm, point: "waiting" if arm else point["rate"], 2, ANY)
    assert not last and [(arm.best, arm.edges) for arm in found] == [(None, ())] * 2


def test_an_arm_with_a_failed_run_holds_up_no_other():
    loss = lambda arm, point: "failed" if arm == 0 and point["rate"] == 4 else bowl(3)(point["rate"])
    found, last = search([{"rate": RATES}] * 2, loss, 2, ANY)
    assert last and found[0].best is None and found[1].best is not None


@pytest.mark.parametrize(
    ("values", "grown"),
    [([1, 10], [1, 10, 100]), ([3e-4, 1e-3], [3e-4, 1e-3, 0.00333333]), ([0.0, 0.1], [0, 0.1, 0.2])],
)
def test_a_list_goes_on_by_the_ratio_of_its_last_two(values, grown):
    found, _ = search([{"key": values}], lambda _, point: -point["key"], 1, ANY)
    assert found[0].grid["key"] == grown

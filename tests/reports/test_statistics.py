import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from wmresearch.reports.statistics import Estimate, PairedDifference, holm, mean_interval, paired_difference

losses = st.floats(min_value=0.5, max_value=8.0)
samples = st.lists(losses, min_size=2, max_size=12)
pairs = st.lists(st.tuples(losses, losses), min_size=2, max_size=12)
p_values = st.lists(st.floats(min_value=0, max_value=1), min_size=1, max_size=12)


def spread_enough(values, scale):
    """scipy itself loses all digits where the spread is rounding."""
    return np.std(values, ddof=1) > 1e-6 * max(map(abs, scale))


@given(samples)
def test_interval_is_scipys(values):
    found = mean_interval(values)
    assert found.n == len(values)
    assert found.mean == pytest.approx(np.mean(values), rel=1e-12)
    if spread_enough(values, values):
        low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
        assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9)
        assert found.sd == pytest.approx(np.std(values, ddof=1), rel=1e-9)


@given(pairs)
def test_paired_difference_is_scipys(both):
    treated, control = zip(*both, strict=True)
    found = paired_difference(treated, control)
    difference = np.subtract(treated, control)
    if spread_enough(difference, [*treated, *control]):
        expected = stats.ttest_rel(treated, control)
        assert found.p == pytest.approx(expected.pvalue, rel=1e-7, abs=1e-300)
        assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)), rel=1e-7, abs=1e-9)
        assert found.p == pytest.approx(stats.ttest_1samp(difference, 0).pvalue, rel=1e-7, abs=1e-300)


@given(pairs)
def test_exchanging_the_two_changes_only_the_sign(both):
    treated, control = zip(*both, strict=True)
    one, other = paired_difference(treated, control), paired_difference(control, treated)
    assert one.mean == -other.mean
    assert one.p == other.p
    assert (one.low, one.high) == (-other.high, -other.low)


@given(pairs)
def test_p_below_five_percent_is_an_interval_without_zero(both):
    found = paired_difference(*zip(*both, strict=True))
    if found.p is not None and abs(found.p - 0.05) > 1e-9:
        assert (found.p < 0.05) == (found.low > 0 or found.high < 0)


def test_wider_confidence_gives_a_wider_interval():
    narrow, wide = mean_interval([1.9, 1.91, 1.88], 0.9), mean_interval([1.9, 1.91, 1.88], 0.99)
    assert wide.low < narrow.low < narrow.mean < narrow.high < wide.high


def test_students_sleep_data():
    # Student 1908, additional hours of sleep under two drugs: mean difference 1.58, t = 4.0621, 9 degrees of freedom
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = paired_difference(second, first)
    assert found.mean == pytest.approx(1.58)
    assert (found.low, found.high) == pytest.approx((0.7001142, 2.4598858), abs=1e-6)
    assert found.p == pytest.approx(0.002833, abs=1e-6)


def test_too_few_values():
    assert mean_interval([]) == Estimate(0, None, None, None, None)
    assert mean_interval([1.9]) == Estimate(1, 1.9, None, None, None)
    assert paired_difference([], []) == PairedDifference(0, None, None, None, None)
    found = paired_difference([1.9], [2.0])
    assert found == PairedDifference(1, pytest.approx(-0.1), None, None, None)


@pytest.mark.parametrize("shift", [0.0, 0.05])
def test_without_spread_the_interval_is_a_point_and_nothing_is_tested(shift):
    control = [1.9, 1.93, 1.88, 2.017]
    treated = [value + shift for value in control]  # the differences vary by rounding alone
    found = paired_difference(treated, control)
    assert found.low == found.mean == found.high == pytest.approx(shift, abs=1e-15)
    assert found.p is None
    assert mean_interval([0.1] * 3) == Estimate(3, 0.1, 0.1, 0.1, 0.0)


def test_a_small_spread_is_not_rounding():
    assert paired_difference([2.0 + 1e-9, 2.0, 2.0 + 2e-9], [2.0, 2.0, 2.0]).p is not None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(bad):
    with pytest.raises(ValueError, match="NaN or infinite"):
        mean_interval([1.0, bad])
    with pytest.raises(ValueError, match="NaN or infinite"):
        paired_difference([1.0, 2.0], [1.0, bad])


def test_bad_requests():
    with pytest.raises(ValueError):
        paired_difference([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="confidence"):
        mean_interval([1.0, 2.0], 95)
    with pytest.raises(ValueError, match="family_size"):
        holm([0.1, 0.2], 1)
    with pytest.raises(ValueError, match="probability"):
        holm([1.2])
    with pytest.raises(ValueError, match="probability"):
        holm([math.nan])


def test_holm_by_hand():
    # sorted .005 .01 .03 .04 times 4 3 2 1 = .02 .03 .06 .04, made monotone: .02 .03 .06 .06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    # in a family of six: times 6 5 4 3
    assert holm([0.01, 0.04, 0.03, 0.005], 6) == pytest.approx([0.05, 0.12, 0.12, 0.03])


@given(p_values)
def test_holm_is_the_step_down_procedure(ps):
    """Holm rejects at level a exactly the hypotheses before the first i with p_(i) > a / (m − i + 1)."""
    corrected = holm(ps)
    for level in (0.01, 0.05, 0.2):
        rejected = set()
        for i, index in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
            if ps[index] * (len(ps) - i) > level:
                break
            rejected.add(index)
        assert {i for i, p in enumerate(corrected) if p <= level} == rejected


@given(p_values, st.integers(min_value=0, max_value=5))
def test_holm_counts_what_has_no_p_as_if_its_p_were_one(ps, missing):
    full = holm([*ps, *[1.0] * missing])[: len(ps)]
    assert holm(ps, len(ps) + missing) == full
    assert holm([None] * missing + ps) == [None] * missing + full


@given(p_values)
def test_holm_keeps_order_and_lies_between_p_and_bonferroni(ps):
    corrected = holm(ps)
    for p, q in zip(ps, corrected, strict=True):
        assert p <= q <= min(1, p * len(ps)) or q == pytest.approx(p)
    assert [q for _, q in sorted(zip(ps, corrected, strict=True))] == sorted(corrected)

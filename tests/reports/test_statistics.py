import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from wmresearch.reports.statistics import (
    Equivalence,
    Estimate,
    PairedDifference,
    equivalence,
    holm,
    mean_interval,
    paired_difference,
    paired_power,
    pairs_needed,
    resolvable_difference,
)

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


@given(pairs, st.floats(min_value=1e-3, max_value=2.0))
def test_equivalence_is_two_one_sided_tests_of_scipy(both, margin):
    treated, control = zip(*both, strict=True)
    difference = np.subtract(treated, control)
    found = equivalence(treated, control, margin)
    if spread_enough(difference, [*treated, *control]):
        above = stats.ttest_1samp(difference, -margin, alternative="greater").pvalue
        below = stats.ttest_1samp(difference, margin, alternative="less").pvalue
        assert found.p == pytest.approx(max(above, below), rel=1e-6, abs=1e-300)
        low, high = stats.t.interval(0.9, len(difference) - 1, loc=np.mean(difference), scale=stats.sem(difference))
        assert (found.low, found.high) == pytest.approx((low, high), rel=1e-7, abs=1e-9)
        if abs(found.p - 0.05) > 1e-9:
            assert (found.p < 0.05) == (-margin < found.low and found.high < margin)


def test_equivalence_by_hand():
    # d = 1, 2, 3: mean 2, s/√n = 1/√3, 2 degrees of freedom, and t₂ has the distribution (1 + t/√(2 + t²))/2
    found = equivalence([1.0, 2.0, 3.0], [0.0, 0.0, 0.0], 5.0)
    t = (5 - 2) * math.sqrt(3)
    assert found.p == pytest.approx((1 - t / math.sqrt(2 + t**2)) / 2)
    assert equivalence([2.0], [1.0], 0.5) == Equivalence(1, 0.5, None, None, None)
    assert equivalence([2.0, 3.0], [1.0, 2.0], 0.5).p is None  # no spread, nothing is tested
    for margin in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="margin"):
            equivalence([1.0, 2.0], [1.0, 2.5], margin)
    with pytest.raises(ValueError, match="confidence"):
        equivalence([1.0, 2.0], [1.0, 2.5], 1.0, 0.4)


def test_power_is_that_of_the_published_example():
    # G*Power 3.1 manual, difference between two dependent means: 50 pairs, d_z = 0.421637, two-sided 5 %
    assert paired_power(0.421637, 1.0, 50) == pytest.approx(0.832114, abs=1e-6)


@given(st.floats(min_value=0.0, max_value=3.0), st.integers(min_value=2, max_value=30))
def test_power_is_scipys_noncentral_t(difference, n):
    critical, shift = stats.t.ppf(0.975, n - 1), math.sqrt(n) * difference / 0.7
    expected = stats.nct.sf(critical, n - 1, shift) + np.nan_to_num(stats.nct.cdf(-critical, n - 1, shift))
    assert paired_power(difference, 0.7, n) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert paired_power(-difference, 0.7, n) == paired_power(difference, 0.7, n)


def test_power_is_how_often_a_test_says_so():
    samples = np.random.default_rng(0).normal(0.6, 0.5, size=(20_000, 6))
    said = np.mean(stats.ttest_1samp(samples, 0.0, axis=1).pvalue < 0.05)
    assert paired_power(0.6, 0.5, 6) == pytest.approx(said, abs=0.01)
    assert paired_power(0.0, 0.5, 6) == pytest.approx(0.05)


@given(st.integers(min_value=2, max_value=20), st.floats(min_value=1e-4, max_value=10.0))
def test_the_resolvable_difference_has_the_power_and_needs_the_pairs(n, sd):
    found = resolvable_difference(sd, n)
    assert paired_power(found, sd, n) == pytest.approx(0.8, abs=1e-9)
    assert pairs_needed(found * (1 + 1e-9), sd) == n
    assert resolvable_difference(2 * sd, n) == pytest.approx(2 * found)
    assert resolvable_difference(sd, n + 1) < found


def test_five_seeds_resolve_less_than_two_spreads():
    assert resolvable_difference(1.0, 5) == pytest.approx(1.6820, abs=1e-4)
    assert pairs_needed(0.01, 1.0, most=100) is None
    for bad in (
        {"sd": 0.0, "n": 5},
        {"sd": 1.0, "n": 1},
        {"sd": 1.0, "n": 5, "power": 1.0},
        {"sd": 1.0, "n": 5, "power": 0.05},
    ):
        with pytest.raises(ValueError):
            resolvable_difference(**bad)

"""Means and paired differences with t intervals, Holm's correction, equivalence, and what n pairs can resolve.

Conventions where a formula has no value, so that a table can carry it: below two values there is no spread, no
interval and no p (None); with none there is no mean either. Values that differ by no more than rounding have spread 0:
their interval is the mean alone, and a difference without spread has no p, because t = mean / 0 tests nothing.
"""

from __future__ import annotations

import math
import statistics as exact
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import nctdtr, stdtr, stdtrit

CONFIDENCE = 0.95
POWER = 0.8
_ROUNDING = 8 * sys.float_info.epsilon
"""Largest spread, relative to the largest value, that is taken for rounding: a few units in the last place."""


@dataclass(frozen=True)
class Estimate:
    """A mean over n values, its t interval [low, high] and the sample standard deviation sd (n − 1 in the divisor)."""

    n: int
    mean: float | None
    low: float | None
    high: float | None
    sd: float | None


@dataclass(frozen=True)
class PairedDifference:
    """The mean of n paired differences, its t interval, two-sided p of the paired t test (mean = 0), and their sd."""

    n: int
    mean: float | None
    low: float | None
    high: float | None
    p: float | None
    sd: float | None = None


@dataclass(frozen=True)
class Equivalence:
    """Whether the mean of n paired differences lies within ±margin: p of the two one-sided tests.

    [low, high] is the t interval of confidence 1 − 2 (1 − confidence); p < 1 − confidence exactly where it lies
    within (−margin, margin).
    """

    n: int
    margin: float
    p: float | None
    low: float | None
    high: float | None


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """x̄ ± t_{n−1} · s/√n, with t_ν the (1 + confidence)/2 quantile of Student's distribution of ν degrees of freedom.

    Raises:
        ValueError: a value is not finite, or the confidence is not between 0 and 1.
    """
    return _estimate(values, max(map(abs, values), default=0.0), confidence)


def paired_difference(
    treated: Sequence[float], control: Sequence[float], confidence: float = CONFIDENCE
) -> PairedDifference:
    """d_i = treated_i − control_i: d̄ ± t_{n−1} · s_d/√n, and p = 2 · P(T_{n−1} > |d̄| / (s_d/√n)).

    Raises:
        ValueError: the two differ in length, a value is not finite, or the confidence is not between 0 and 1.
    """
    differences = [a - b for a, b in zip(treated, control, strict=True)]
    found = _estimate(differences, max(map(abs, [*treated, *control]), default=0.0), confidence)
    p = None
    if found.mean is not None and found.sd:
        p = float(2 * stdtr(found.n - 1, -abs(found.mean) / (found.sd / math.sqrt(found.n))))
    return PairedDifference(found.n, found.mean, found.low, found.high, p, found.sd)


def equivalence(
    treated: Sequence[float], control: Sequence[float], margin: float, confidence: float = CONFIDENCE
) -> Equivalence:
    """TOST, p = max over both signs of P(T_{n−1} > (margin ± d̄) / (s_d/√n)), d_i = treated_i − control_i.

    Schuirmann 1987, doi 10.1007/BF01068419. A small p says that the means differ by less than the margin, which a
    large p of `paired_difference` does not. The margin is one that was stated before the runs.

    Raises:
        ValueError: as `paired_difference`, or the margin is not a positive number, or the confidence not above 1/2.
    """
    if not (math.isfinite(margin) and margin > 0):
        raise ValueError(f"margin = {margin}: expected a positive number")
    if not 0.5 < confidence < 1:
        raise ValueError(f"confidence = {confidence}: expected a number between 0.5 and 1")
    differences = [a - b for a, b in zip(treated, control, strict=True)]
    found = _estimate(differences, max(map(abs, [*treated, *control]), default=0.0), 2 * confidence - 1)
    p = None
    if found.mean is not None and found.sd:
        error = found.sd / math.sqrt(found.n)
        p = float(stdtr(found.n - 1, (abs(found.mean) - margin) / error))
    return Equivalence(found.n, margin, p, found.low, found.high)


def paired_power(difference: float, sd: float, n: int, confidence: float = CONFIDENCE) -> float:
    """P(|T| > t_{n−1}), T noncentral t of n − 1 degrees of freedom with noncentrality √n · difference / sd.

    How likely n pairs show a true mean difference with a two-sided paired t test of level 1 − confidence, where single
    differences have the standard deviation sd (Cohen 1988, chapter 2).

    Raises:
        ValueError: sd is not positive, n is below 2, or the confidence is not between 0 and 1.
    """
    if not sd > 0 or n < 2 or not 0 < confidence < 1:
        raise ValueError(f"sd = {sd}, n = {n}, confidence = {confidence}: expected sd > 0, n ≥ 2, 0 < confidence < 1")
    critical = float(stdtrit(n - 1, (1 + confidence) / 2))
    shift = math.sqrt(n) * abs(difference) / sd
    near, far = (float(nctdtr(n - 1, nearer, -critical)) for nearer in (-shift, shift))
    return near + (0.0 if math.isnan(far) else far)  # scipy has NaN for some tails below 1e-16


def resolvable_difference(sd: float, n: int, power: float = POWER, confidence: float = CONFIDENCE) -> float:
    """The Δ with paired_power(Δ, sd, n) = power: with this spread, n pairs show a difference of Δ with that chance.

    Raises:
        ValueError: as `paired_power`, or the power is not above 1 − confidence and below 1.
    """
    if not 1 - confidence < power < 1:
        raise ValueError(f"power = {power}: expected a number between {1 - confidence:g} and 1")
    low, high = 0.0, sd
    while paired_power(high, sd, n, confidence) < power:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if paired_power(middle, sd, n, confidence) >= power else (middle, high)
    return high


def pairs_needed(
    difference: float, sd: float, power: float = POWER, confidence: float = CONFIDENCE, most: int = 1000
) -> int | None:
    """The least n with paired_power(difference, sd, n) ≥ power; None where that is more than `most`.

    Raises:
        ValueError: as `paired_power`.
    """
    return next((n for n in range(2, most + 1) if paired_power(difference, sd, n, confidence) >= power), None)


def holm(p_values: Sequence[float | None], family_size: int | None = None) -> list[float | None]:
    """p̃_(i) = max_{j ≤ i} min(1, (m − j + 1) · p_(j)), p_(1) ≤ p_(2) ≤ …, m = family_size (Holm 1979, step-down).

    None stands for a comparison that was planned and has no p yet. It counts in m, as if its p were 1, which can only
    make the corrected p of the others larger. `family_size` may exceed the number of values given.

    Raises:
        ValueError: a p outside [0, 1], or a family smaller than the values given.
    """
    size = len(p_values) if family_size is None else family_size
    if size < len(p_values):
        raise ValueError(f"family_size = {size}: expected at least the {len(p_values)} comparisons given")
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(known):
        if not 0 <= p <= 1:
            raise ValueError(f"p = {p}: expected a probability")
        largest = max(largest, min(1.0, (size - rank) * p))
        corrected[index] = largest
    return corrected


def _estimate(values: Sequence[float], scale: float, confidence: float) -> Estimate:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence = {confidence}: expected a number between 0 and 1")
    if not all(map(math.isfinite, values)):
        raise ValueError("a value is NaN or infinite: leave out diverged runs before taking a mean")
    n = len(values)
    if n == 0:
        return Estimate(0, None, None, None, None)
    mean = float(exact.mean(values))  # exact rational arithmetic: no cancellation, no overflow
    if n == 1:
        return Estimate(1, mean, None, None, None)
    sd = float(exact.stdev(values))
    sd = 0.0 if sd <= _ROUNDING * scale else sd
    half = float(stdtrit(n - 1, (1 + confidence) / 2)) * sd / math.sqrt(n)
    return Estimate(n, mean, mean - half, mean + half, sd)

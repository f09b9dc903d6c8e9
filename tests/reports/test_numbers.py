import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmresearch.reports import numbers


@pytest.mark.parametrize(
    ("mean", "half", "text"),
    [
        (1.88324, 0.00312, "1.8832 ± 0.0031"),
        (1.88324, 0.0996, "1.88 ± 0.10"),
        (1.88324, 0.00996, "1.883 ± 0.010"),
        (1.88324, 1.34, "1.9 ± 1.3"),
        (1.88324, 13.4, "2 ± 13"),
        (1.88324, 134.0, "2 ± 134"),
        (1.88324, None, "1.8832"),
        (1.88324, 0.0, "1.8832 ± 0"),
        (None, None, "–"),
    ],
)
def test_mean_and_half_width_end_at_the_same_place(mean, half, text):
    assert numbers.plus_minus(mean, half) == text


@given(st.floats(-10, 10), st.floats(1e-9, 1e3))
def test_what_is_printed_is_near_what_was_found(mean, half):
    left, _, right = numbers.plus_minus(mean, half).partition(" ± ")
    assert float(right) == pytest.approx(half, rel=0.05)
    assert float(left.replace("−", "-")) == pytest.approx(mean, abs=0.051 * half + 0.5 * (half > 9.5))
    assert len(left.partition(".")[2]) == len(right.partition(".")[2])


def test_signs():
    assert numbers.plus_minus(0.01, 0.002, signed=True) == "+0.0100 ± 0.0020"
    assert numbers.plus_minus(-0.01, 0.002, signed=True) == "−0.0100 ± 0.0020"
    assert numbers.plus_minus(-0.00001, 0.02, signed=True) == "0.000 ± 0.020"


@pytest.mark.parametrize(
    ("p", "text"),
    [(None, "–"), (0.0, "< 0.001"), (0.00099, "< 0.001"), (0.001, "0.001"), (0.0312, "0.031"), (1.0, "1.000")],
)
def test_p(p, text):
    assert numbers.p_value(p) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"), (512, "512 B"), (1023, "1023 B"), (1024, "1 KiB"), (16 * 1024, "16 KiB"), (1536, "1.50 KiB"),
        (12_345_678, "11.8 MiB"), (35_281_469_440, "32.9 GiB"), (2**50 * 5000, "5000 PiB"),
    ],
)  # fmt: skip
def test_memory(count, text):
    assert numbers.memory(count) == text


def test_counts():
    assert numbers.whole(827392) == "827,392"
    assert numbers.whole(None) == numbers.rough(None) == numbers.flops(None) == "–"
    assert [numbers.rough(x) for x in (12345.6, 998765.0, 99.64, 0.5)] == ["12,300", "999,000", "99.6", "0.5"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5.1e6, "5.10 MFLOP"),
        (51.04e6, "51.0 MFLOP"),
        (510.4e6, "510 MFLOP"),
        (999.6e6, "1.00 GFLOP"),
        (1000, "1.00 kFLOP"),
        (999, "999 FLOP"),
        (0, "0 FLOP"),
        (2.5e12, "2.50 TFLOP"),
    ],
)
def test_flops(value, text):
    assert numbers.flops(value) == text

"""Numbers as people read them: digits that the uncertainty supports, thousands grouped, a true minus sign."""

from __future__ import annotations

import math

DASH = "–"
"""Stands where there is no number."""
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMALS = 4
"""Digits after the point of a loss whose uncertainty is unknown."""


def plus_minus(mean: float | None, half: float | None, signed: bool = False) -> str:
    """`1.8832 ± 0.0031`: the half-width to two significant digits, the mean to the same place."""
    if mean is None:
        return DASH
    if not half:
        return _fixed(mean, _DECIMALS, signed) + ("" if half is None else " ± 0")
    decimals = max(0, 1 - int(f"{half:.1e}".partition("e")[2]))
    return f"{_fixed(mean, decimals, signed)} ± {half:.{decimals}f}"


def p_value(p: float | None) -> str:
    """`0.003`, `< 0.001`."""
    if p is None:
        return DASH
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def whole(value: float | None) -> str:
    """`827,392`."""
    return DASH if value is None else f"{value:,.0f}"


def rough(value: float | None) -> str:
    """`12,300`: three significant digits, for what varies from one measurement to the next."""
    return DASH if value is None else f"{float(f'{value:.2e}'):,.0f}" if value >= 100 else f"{value:.3g}"


def flops(value: float | None) -> str:
    """`5.10 MFLOP`: three significant digits."""
    if value is None:
        return DASH
    rounded = float(f"{value:.2e}")
    power = min(max(math.floor(math.log10(rounded)) // 3, 0), 6) if rounded > 0 else 0
    scaled = rounded / 1000**power
    digits = max(0, 3 - len(f"{int(scaled)}")) if power else 0
    return f"{scaled:.{digits}f} {('', 'k', 'M', 'G', 'T', 'P', 'E')[power]}FLOP"


def duration(seconds: float) -> str:
    """'48 s', '3 min 20 s', '2 h 05 min'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def quantity(value: float) -> str:
    """'950', '31.2k', '4.1M', '8.03B': three digits and a suffix."""
    for size, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            scaled = value / size
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{suffix}"
    return f"{value:.0f}"


def memory(count: int) -> str:
    """`512 B`, `16 KiB`, `32.9 GiB`: bytes, three digits."""
    power = min(max(count.bit_length() - 1, 0) // 10, 5)
    scaled = count / 1024**power
    return f"{scaled:.{0 if scaled >= 100 or scaled == int(scaled) else 1 if scaled >= 10 else 2}f} {_BINARY[power]}"


def _fixed(value: float, decimals: int, signed: bool) -> str:
    text = f"{value:{'+' if signed else ''}.{decimals}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    return text.replace("-", "−")

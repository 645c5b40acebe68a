"""Formats numbers for people. Pure."""

from __future__ import annotations

import math


def value(number: float) -> str:
    """Returns a loss or metric as text: four decimals, or an exponent where those would hide it."""
    if number == 0 or not math.isfinite(number) or 1e-3 <= abs(number) < 1e4:
        return f"{number:.4f}"
    return f"{number:.3e}"


def rate(per_s: float) -> str:
    """Returns samples per second as text: 7.31, 812, 12.3k, 1.20M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if per_s >= 0.9995 * size:
            return f"{_three_digits(per_s / size)}{unit}"
    return _three_digits(per_s)


def duration(seconds: float) -> str:
    """Returns a duration as text: 0.4 s, 12 s, 3:07, 1:02:03."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def _three_digits(number: float) -> str:
    """Returns a number with three significant digits."""
    return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f}"

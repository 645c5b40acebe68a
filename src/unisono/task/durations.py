"""Lengths of time as people and SLURM write them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from unisono.errors import UsageError

DURATION_FORMS = "2h, 90m, 1h30m, 45s, or as SLURM writes it: minutes, minutes:seconds, [days-]hours:minutes:seconds, days-hours"
UNIT_S: Mapping[str, int] = {"d": 86400, "h": 3600, "m": 60, "s": 1}

WITH_UNITS = re.compile(r"(?=.)" + "".join(rf"(?:(?P<{unit}>\d{{1,9}}(?:\.\d{{1,9}})?){unit})?" for unit in UNIT_S), re.ASCII)
WITH_DAYS = re.compile(r"(?P<d>\d{1,9})-(?P<h>\d{1,9})(?::(?P<m>\d{1,9})(?::(?P<s>\d{1,9}))?)?", re.ASCII)
WITHOUT_DAYS = re.compile(r"(?:(?P<h>\d{1,9}):(?=\d+:))?(?P<m>\d{1,9})(?::(?P<s>\d{1,9}))?", re.ASCII)


def parse_duration(text: str, what: str = "a time limit") -> float:
    """Pure: returns the seconds of a text. A bare number is minutes, as in SLURM. `what` is its name in messages."""
    written = text.strip().lower()
    found = next((match for form in (WITH_UNITS, WITH_DAYS, WITHOUT_DAYS) if (match := form.fullmatch(written))), None)
    seconds = sum(float(value) * UNIT_S[unit] for unit, value in found.groupdict().items() if value) if found else 0.0
    if not seconds:
        raise UsageError(f"{what} must be above 0 and written like {DURATION_FORMS}; received {text!r}")
    return seconds


def show_duration(seconds: float) -> str:
    """Pure: returns whole seconds as text that `parse_duration` reads: '1h30m'."""
    left, parts = round(seconds), ""
    for unit, unit_s in UNIT_S.items():
        number, left = divmod(left, unit_s)
        parts += f"{number}{unit}" if number else ""
    return parts or "0s"

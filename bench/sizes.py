"""Sizes as people write them: 4KB, 400KB, 4MB (powers of ten), 64KiB, 16MiB (powers of two)."""

from __future__ import annotations

import re

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def parse_size(text: str) -> int:
    """Local: number of bytes, a multiple of 4 as float32 needs it; `ValueError` says what is wrong."""
    found = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text.strip())
    units = {name.lower(): factor for name, factor in UNITS.items()}
    if not found or (found[2].lower() or "b") not in units:
        raise ValueError(f"a size is a whole number with one of {', '.join(UNITS)}, e.g. 400KB; received {text!r}")
    num_bytes = int(found[1]) * units[found[2].lower() or "b"]
    if not num_bytes or num_bytes % 4:
        raise ValueError(f"a size must be a multiple of 4 bytes above 0, as a float32 has 4; received {text!r}")
    return num_bytes


def show_size(num_bytes: int) -> str:
    """Local: the shortest of the ways to write it."""
    whole = [f"{num_bytes // factor} {name}" for name, factor in UNITS.items() if num_bytes % factor == 0]
    return min(whole, key=len)


def show_count(number: int, name: str) -> str:
    """Pure: 1 worker, 2 workers."""
    return f"{number} {name}{'' if number == 1 else 's'}"

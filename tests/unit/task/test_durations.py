"""Lengths of time as people and SLURM write them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.errors import UsageError
from unisono.task.durations import parse_duration, show_duration

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", 2 * HOUR_S),
        ("90m", 5400),
        ("1h30m", 5400),
        ("45s", 45),
        ("1d2h3m4s", DAY_S + 2 * HOUR_S + 184),
        ("1.5h", 5400),
        (" 2H ", 2 * HOUR_S),
        ("0.5s", 0.5),
        ("30", 1800),
        ("1", 60),
        ("2:30", 150),
        ("90:00", 5400),
        ("01:30:00", 5400),
        ("0:00:01", 1),
        ("1-0", DAY_S),
        ("1-12", 1.5 * DAY_S),
        ("1-12:30", 1.5 * DAY_S + 1800),
        ("1-12:30:15", 1.5 * DAY_S + 1815),
        ("0-0:0:1", 1),
    ],
)
def test_a_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


REFUSED = (
    *("", " ", "0", "00:00:00", "0h", "-5", "-1h", "-1", "1.5", "1e3", "inf", "nan", "9" * 400, "٣h"),
    *("soon", "1x", "h", "30m1h", "1h 30m", "1h30", "1h-2", "1-", "1:", ":1", "1:2:3:4", "1-2:3:4:5", "UNLIMITED"),
)


@pytest.mark.parametrize("text", REFUSED)
def test_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"received {text!r}")):
        parse_duration(text)


@given(st.integers(1, 10**8))
def test_a_duration_is_read_as_it_is_shown(seconds: int) -> None:
    assert parse_duration(show_duration(seconds)) == seconds


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(1, 59))
def test_a_duration_is_read_as_slurm_means_it(days: int, hours: int, minutes: int, seconds: int) -> None:
    total = days * DAY_S + hours * HOUR_S + minutes * 60 + seconds
    assert parse_duration(f"{days}-{hours:02}:{minutes:02}:{seconds:02}") == total
    assert parse_duration(f"{days * 24 + hours}:{minutes:02}:{seconds:02}") == total
    assert parse_duration(f"{(days * 24 + hours) * 60 + minutes}:{seconds:02}") == total


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert parse_duration(text) > 0
    except UsageError as error:
        assert repr(text) in str(error)

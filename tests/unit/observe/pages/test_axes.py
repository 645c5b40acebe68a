"""Scales put values in order within the axis, and ticks at round numbers."""

from __future__ import annotations

import random

import pytest

from unisono.observe.pages.axes import Places, Scale


def test_scales_put_values_in_order_and_ticks_inside() -> None:
    draw = random.Random(0)
    for _ in range(200):
        low = 10 ** draw.uniform(-6, 4)
        high = low * 10 ** draw.uniform(0.01, 6)
        for log in (False, True):
            scale = Scale(low, high, 10.0, 110.0, log)
            places = [scale.place(low + (high - low) * share / 7) for share in range(8)]
            assert places == sorted(places) and places[0] == pytest.approx(10) and places[-1] == pytest.approx(110)
            ticks = scale.ticks(6)
            assert 2 <= len(ticks) <= 8 and all(10 <= place <= 110 for place, _ in ticks)
    assert Scale(0.0, 1.0, 0.0, 10.0).place(5.0) == 10.0 and Scale(0.1, 1.0, 0.0, 10.0, True).place(-5.0) == 0.0
    assert len(Scale(2.0, 2.0, 0.0, 10.0).ticks()) == 1


def test_choices_have_places() -> None:
    places = Places(("a", None, 3), 0.0, 30.0)
    assert places.ticks() == [(5.0, "a"), (15.0, "None"), (25.0, "3")]

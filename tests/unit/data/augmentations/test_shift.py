"""Shifts: by how much, in which direction, and what comes in."""

from __future__ import annotations

from collections import Counter

import numpy as np

import unisono as un

MANY = 3000


def where_the_mark_went(shift: un.augment.Shift, shape: tuple[int, ...], mark: tuple[int, ...]) -> Counter[tuple[int, ...]]:
    """How often a mark is moved by how much."""
    inputs = np.zeros((MANY, *shape))
    where: tuple[slice | int, ...] = (slice(None), *mark)
    inputs[where] = 1
    (changed,) = shift((inputs,), un.SampleRandom(0, 0, np.arange(MANY)))
    assert (changed.reshape(MANY, -1).sum(1) == 1).all(), "the mark stays in sight"
    places = np.argwhere(changed)[:, 1:] - np.array(mark)
    return Counter(tuple(place) for place in places.tolist())


def test_all_shifts_are_equally_likely() -> None:
    found = where_the_mark_went(un.augment.Shift((1, 2)), (9, 9), (4, 4))
    assert set(found) == {(down, right) for down in (-1, 0, 1) for right in (-2, -1, 0, 1, 2)}
    assert all(130 < count < 270 for count in found.values())


def test_pixels_belong_to_the_axes_as_they_are_written() -> None:
    found = where_the_mark_went(un.augment.Shift((1, 0, 2), axes=(-1, -2, -3)), (7, 7, 7), (3, 3, 3))
    assert {tuple(max(one[axis] for one in found) for axis in range(3))} == {(2, 0, 1)}


def test_what_comes_in_is_the_fill() -> None:
    images = np.random.default_rng(0).integers(0, 200, (MANY, 2, 6, 5)).astype(np.uint8)
    (changed,) = un.augment.Shift(2, fill=255)((images,), un.SampleRandom(5, 1, np.arange(MANY)))
    start = un.SampleRandom(5, 1, np.arange(MANY)).integers(0, 5, (2,))
    for number in range(50):
        down, right = start[number]
        padded = np.full((2, 10, 9), 255, dtype=np.uint8)
        padded[:, 2:8, 2:7] = images[number]
        assert np.array_equal(changed[number], padded[:, down : down + 6, right : right + 5])


def test_other_pixels_draw_as_integers_does() -> None:
    """Also where each axis has a span of its own."""
    drawn = un.augment.Shift((3, 1))._draw(un.SampleRandom(5, 1, np.arange(9)))
    for number, span in enumerate((7, 3)):
        assert np.array_equal(drawn[number], un.SampleRandom(5, 1, np.arange(9)).integers(0, span, (2,))[:, number])

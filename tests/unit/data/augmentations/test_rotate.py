"""Rotations: quarter turns move values, other angles take the nearest."""

from __future__ import annotations

from math import cos, pi, sin

import numpy as np

import unisono as un
from unisono.data.augmentations.rotate import BITS, STEPS

MANY = 400


def test_quarter_turns_are_those_of_numpy_and_equally_likely() -> None:
    for size in (1, 2, 5, 8):
        images = np.random.default_rng(0).normal(size=(MANY, 3, size, size))
        random = un.SampleRandom(3, 1, np.arange(MANY))
        (changed,) = un.augment.Rotate(quarter_turns=True)((images,), un.SampleRandom(3, 1, np.arange(MANY)))
        turns = random.integers(0, 4)
        assert np.array_equal(changed, np.stack([np.rot90(one, turn, (1, 2)) for one, turn in zip(images, turns, strict=True)]))
        assert np.bincount(turns).min() > MANY / 6


def test_other_angles_take_the_nearest_place() -> None:
    height, width, degrees = 11, 8, 40.0
    images = np.arange(1.0, height * width + 1).reshape(1, height, width).repeat(MANY, 0)
    rotate = un.augment.Rotate(degrees, fill=-1)
    (changed,) = rotate((images,), un.SampleRandom(2, 0, np.arange(MANY)))
    steps = un.SampleRandom(2, 0, np.arange(MANY)).integers(0, 2 * STEPS + 1)
    down, right = np.meshgrid(np.arange(height) - (height - 1) / 2, np.arange(width) - (width - 1) / 2, indexing="ij")
    for number in range(MANY):
        angle = degrees * (steps[number] - STEPS) / STEPS * pi / 180
        row = np.floor(cos(angle) * down + sin(angle) * right + height / 2).astype(int)
        column = np.floor(cos(angle) * right - sin(angle) * down + width / 2).astype(int)
        is_inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        expected = np.where(is_inside, images[0][row.clip(0, height - 1), column.clip(0, width - 1)], -1)
        assert (changed[number] == expected).mean() > 0.97, "but for places that lie between two, within rounding"
        assert number > 20 or np.array_equal(changed[number], expected)


def test_the_table_of_angles_does_not_depend_on_the_machine() -> None:
    """As cosine and sine of C libraries may: these are rounded, far from the last bit."""
    table = un.augment.Rotate(90)._table
    assert table[[0, STEPS, 2 * STEPS]].tolist() == [[0, -(2**BITS)], [2**BITS, 0], [0, 2**BITS]]
    assert table[STEPS + STEPS // 3].tolist() == [929956318, 536752038]
    assert (np.abs((table.astype(float) ** 2).sum(1) / 2.0 ** (2 * BITS) - 1) < 1e-8).all()


def test_a_turn_in_another_plane_of_a_volume() -> None:
    volumes = np.random.default_rng(0).normal(size=(20, 2, 4, 3, 4))
    (changed,) = un.augment.Rotate(quarter_turns=True, axes=(-3, -1))((volumes,), un.SampleRandom(0, 0, range(20)))
    turns = un.SampleRandom(0, 0, range(20)).integers(0, 4)
    for one, before, turn in zip(changed, volumes, turns, strict=True):
        assert np.array_equal(one, np.rot90(before, turn, (1, 3)))

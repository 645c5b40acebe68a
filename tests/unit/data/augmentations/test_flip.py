"""Flips: which samples, along which axes."""

from __future__ import annotations

import numpy as np

import unisono as un

IMAGES = np.random.default_rng(0).normal(size=(2000, 2, 3, 4))
SAMPLES = np.arange(2000)


def test_the_samples_that_random_says_are_mirrored() -> None:
    (changed,) = un.augment.Flip(-1, 0.3)((IMAGES,), un.SampleRandom(1, 2, SAMPLES))
    is_flipped = un.SampleRandom(1, 2, SAMPLES).flip(0.3)
    assert np.array_equal(changed, np.where(is_flipped[:, None, None, None], IMAGES[..., ::-1], IMAGES))
    assert 0.25 < is_flipped.mean() < 0.35


def test_each_axis_is_decided_by_itself() -> None:
    (changed,) = un.augment.Flip((-1, -2))((IMAGES,), un.SampleRandom(1, 2, SAMPLES))
    ways = {(rows, columns): IMAGES[..., ::rows, ::columns] for rows in (1, -1) for columns in (1, -1)}
    shares = [(changed == way).all(axis=(1, 2, 3)).mean() for way in ways.values()]
    assert sum(shares) == 1 and all(0.2 < share < 0.3 for share in shares)


def test_never_and_always() -> None:
    for probability, expected in ((0, IMAGES), (1, IMAGES[:, :, ::-1])):
        (changed,) = un.augment.Flip(-2, probability)((IMAGES,), un.SampleRandom(0, 0, SAMPLES))
        assert np.array_equal(changed, expected)

"""A chain: one after another, with random numbers of their own."""

from __future__ import annotations

import numpy as np

import unisono as un

IMAGES = np.random.default_rng(0).normal(size=(50, 6, 6))
FLIP, SHIFT = un.augment.Flip(-1), un.augment.Shift(2)


def test_it_is_one_after_another_with_the_draws_in_that_order() -> None:
    random = un.SampleRandom(1, 2, range(50))
    by_hand = SHIFT(FLIP((IMAGES, IMAGES), random), random)
    chained = un.augment.Chain(FLIP, SHIFT)((IMAGES, IMAGES), un.SampleRandom(1, 2, range(50)))
    assert np.array_equal(chained[0], by_hand[0]) and chained[1] is IMAGES
    other = un.augment.Chain(SHIFT, FLIP)((IMAGES,), un.SampleRandom(1, 2, range(50)))
    assert not np.array_equal(chained[0], other[0])


def test_a_chain_in_a_chain_is_a_chain() -> None:
    nested = un.augment.Chain(un.augment.Chain(FLIP), un.augment.Chain(SHIFT, FLIP))
    flat = un.augment.Chain(FLIP, SHIFT, FLIP)
    (one,), (other,) = (chain((IMAGES,), un.SampleRandom(0, 0, range(50))) for chain in (nested, flat))
    assert np.array_equal(one, other)


def test_the_same_twice_draws_twice() -> None:
    (changed,) = un.augment.Chain(FLIP, FLIP)((IMAGES,), un.SampleRandom(0, 0, range(50)))
    assert not np.array_equal(changed, IMAGES)

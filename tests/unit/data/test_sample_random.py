"""Random numbers of samples: the same whoever draws them, uniform, and unrelated to each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from unisono.data.sample_random import SampleRandom
from unisono.errors import UsageError

MANY = np.arange(20000)
DRAWS: tuple[Callable[[SampleRandom], Any], ...] = (
    lambda random: random.uniform(-1, 1),
    lambda random: random.integers(0, 8, (3,)),
    lambda random: random.normal((2, 2)),
    lambda random: random.flip(0.3),
    lambda random: random.uniform(shape=(4,), dtype=np.float64),
)


def all_draws(indices: Any, seed: int = 7, epoch: int = 3) -> list[Any]:
    random = SampleRandom(seed, epoch, indices)
    return [draw(random) for draw in DRAWS]


def test_a_sample_draws_the_same_in_every_batch() -> None:
    together = all_draws([5, 900, 2, 2**40, 5])
    for place, number in enumerate((5, 900, 2, 2**40, 5)):
        for whole, alone in zip(together, all_draws([number]), strict=True):
            assert np.array_equal(whole[place], alone[0])


def test_shapes_and_types() -> None:
    assert [(draw.shape, draw.dtype) for draw in all_draws([1, 2])] == [
        ((2,), np.float32),
        ((2, 3), np.int64),
        ((2, 2, 2), np.float32),
        ((2,), np.bool_),
        ((2, 4), np.float64),
    ]
    assert SampleRandom(0, 0, []).uniform(shape=(3,)).shape == (0, 3)


def mixed(key: int, number: int) -> int:
    """SplitMix64 in plain whole numbers."""
    bits = (key + (number + 1) * 0x9E3779B97F4A7C15) % 2**64
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % 2**64
    return bits ^ (bits >> 31)


def test_values_stay_as_they_are() -> None:
    """A later version that resumes a run must draw the same."""
    assert mixed(0, 0) == 0xE220A8397B1DCDAF, "the first number of SplitMix64 with seed 0, as published"
    random = SampleRandom(1, 2, [3, 4])
    random.flip()
    second_draw = random.integers(0, 2**32, (2,)).tolist()
    keys = [mixed(mixed(mixed(mixed(0, 1), 2), sample), 1) for sample in (3, 4)]
    assert second_draw == [[mixed(key, position) >> 32 for position in (0, 1)] for key in keys]


@pytest.mark.parametrize("change", [{"seed": 8}, {"epoch": 4}, {"seed": -1}, {"seed": 2**70}])
def test_another_seed_or_epoch_draws_others(change: dict[str, int]) -> None:
    here, there = all_draws(MANY)[4], all_draws(MANY, **change)[4]
    assert abs(np.corrcoef(here.ravel(), there.ravel())[0, 1]) < 0.02


def test_seed_and_epoch_are_not_mixed_up() -> None:
    assert not np.array_equal(all_draws(MANY, seed=1, epoch=2)[4], all_draws(MANY, seed=2, epoch=1)[4])


def test_numbers_are_uniform() -> None:
    random = SampleRandom(0, 0, MANY)
    for _ in range(3):
        counts = np.bincount((random.uniform(shape=(5,)) * 100).astype(int).ravel(), minlength=100)
        expected = len(MANY) * 5 / 100
        squared = ((counts - expected) ** 2 / expected).sum()
        assert 50 < squared < 170, "chi squared with 99 degrees of freedom has mean 99 and deviation 14"
    whole = random.integers(-3, 4, (5,))
    assert sorted(np.unique(whole)) == [-3, -2, -1, 0, 1, 2, 3]
    assert abs(whole.mean()) < 0.03
    assert abs(random.flip(0.2).mean() - 0.2) < 0.015
    normal = random.normal((5,))
    assert abs(normal.mean()) < 0.015
    assert abs(normal.std() - 1) < 0.015
    assert abs((np.abs(normal) > 1.96).mean() - 0.05) < 0.005


def test_samples_draws_and_positions_are_unrelated() -> None:
    random = SampleRandom(0, 0, MANY)
    first, second = random.uniform(shape=(6,), dtype=np.float64), random.uniform(shape=(6,), dtype=np.float64)
    related = np.corrcoef(np.concatenate([first, second, np.roll(first, 1, axis=0), np.roll(second, 1, axis=0)], axis=1).T)
    assert np.abs(related - np.eye(24)).max() < 0.04, "each is another sample, draw or position"


def test_every_bit_of_the_sample_number_turns_half_of_the_bits() -> None:
    base = SampleRandom(0, 0, [0]).integers(0, 2**32, (64,))
    for bit in range(40):
        turned = SampleRandom(0, 0, [1 << bit]).integers(0, 2**32, (64,))
        share = np.unpackbits((base ^ turned).astype(np.uint32).view(np.uint8)).mean()
        assert 0.44 < share < 0.56


def test_the_ends_of_the_ranges() -> None:
    random = SampleRandom(0, 0, MANY)
    near = random.uniform(1.0, np.nextafter(np.float32(1), np.float32(2)))
    assert set(near.tolist()) == {1.0}, "rounding must not reach the end"
    assert not random.flip(0.0).any()
    assert random.flip(1.0).all()
    assert set(random.integers(5, 6).tolist()) == {5}
    for wrong in (
        lambda: random.uniform(1, 1),
        lambda: random.integers(3, 3),
        lambda: random.integers(0, 2**33),
        lambda: random.flip(1.1),
    ):
        with pytest.raises(UsageError):
            wrong()

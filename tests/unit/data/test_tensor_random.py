"""Random numbers of samples on tensors: those of SampleRandom, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from unisono.data.sample_random import SampleRandom, epoch_key
from unisono.data.tensor_random import TensorRandom
from unisono.errors import UsageError

SEEDS = (0, 1, 12345, -1, 2**63 - 1, 2**63, 2**70)
EPOCHS = (0, 1, 99, 2**40)
DRAWS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("uniform", (-1, 1)),
    ("uniform", (0.0, 1e-3, (3, 1))),
    ("uniform", (1.0, float(np.nextafter(np.float32(1), np.float32(2))))),
    ("integers", (0, 8, (3,))),
    ("integers", (-5, 2**31, (2, 2))),
    ("integers", (0, 2**32)),
    ("integers", (-(2**62), 1 - (2**62))),
    ("flip", (0.3,)),
    ("flip", (0.5, (2, 3))),
    ("flip", (1.0, (0,))),
)


def twins(seed: int, epoch: int, samples: Any) -> tuple[SampleRandom, TensorRandom]:
    numbers = np.asarray(samples, dtype=np.int64)
    return SampleRandom(seed, epoch, numbers), TensorRandom(torch.tensor([epoch_key(seed, epoch)]), torch.from_numpy(numbers))


def test_every_draw_has_the_same_bits() -> None:
    drawn = np.random.default_rng(0)
    for seed in SEEDS:
        for epoch in EPOCHS:
            samples = np.concatenate([drawn.integers(0, 2**62, 50), [0, 1, 2, -1, 2**63 - 1, 1]])
            here, there = twins(seed, epoch, samples)
            assert len(here) == len(there)
            for _ in range(2):
                for name, arguments in DRAWS:
                    expected, found = getattr(here, name)(*arguments), getattr(there, name)(*arguments).numpy()
                    assert expected.dtype == found.dtype and np.array_equal(expected, found), (name, arguments, seed, epoch)
            expected = here.uniform(2.0, 3.0, (4,), dtype=np.float64)
            assert np.array_equal(expected, there.uniform(2.0, 3.0, (4,), dtype=torch.float64).numpy())


def test_a_sample_draws_the_same_in_every_batch() -> None:
    together = twins(3, 4, [5, 900, 2, 2**40, 5])[1].uniform(shape=(3,))
    for place, number in enumerate((5, 900, 2, 2**40, 5)):
        assert torch.equal(together[place], twins(3, 4, [number])[1].uniform(shape=(3,))[0])


def test_no_samples_give_no_numbers() -> None:
    assert twins(0, 0, [])[1].uniform(shape=(3,)).shape == (0, 3)


def test_all_that_varies_is_a_tensor_on_the_device() -> None:
    """On the device that has shapes and no values, whatever needs a value fails: the draws can be captured."""
    random = TensorRandom(torch.empty(1, dtype=torch.int64, device="meta"), torch.empty(7, dtype=torch.int64, device="meta"))
    assert random.uniform(shape=(2,)).shape == (7, 2)
    assert random.integers(0, 9).shape == random.flip().shape == (7,)


def test_the_same_is_refused() -> None:
    wrong: tuple[Callable[[Any], Any], ...] = (
        lambda random: random.uniform(1, 1),
        lambda random: random.integers(3, 3),
        lambda random: random.integers(0, 2**33),
        lambda random: random.flip(1.1),
    )
    for draw in wrong:
        for random in twins(0, 0, [1]):
            with pytest.raises(UsageError):
                draw(random)
    with pytest.raises(UsageError, match=r"gives float32 or float64 on tensors; received torch.float16"):
        twins(0, 0, [1])[1].uniform(dtype=torch.float16)

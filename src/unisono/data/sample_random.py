"""Random numbers that belong to a sample, for augmentation: they are the same in whichever batch and worker the sample is computed.

A number is a pure function of (seed, epoch, sample, how-many-th draw, position in the draw). Each of them is mixed in by the
finaliser of SplitMix64 (Steele, Lea, Flood 2014), a bijection of 64 bits of which every output bit depends on every input bit.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.errors import UsageError

Bits = npt.NDArray[np.uint64]

STRIDE = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: products of it with neighbouring numbers are far apart."""
FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class SampleRandom:
    """Random numbers for augmentation that belong to each sample.

    A sample gets the same numbers in whichever batch, on whichever worker it is, so the number of workers does not change
    the training. They depend on the seed, the epoch, the number of the sample, and how many draws came before. The first
    axis of every result is the sample. Local.

    Make the same draws for every batch, whatever is in it: a draw inside an `if` on the content of the batch would shift
    all that follow. A task's `augment` function gets one as its second argument.

    Example:
        import numpy as np
        import unisono as un

        def augment(batch, random):
            images, labels = batch
            mirrored = random.flip()  # one for each sample
            return np.where(mirrored[:, None], images[:, ::-1], images), labels

        images, labels = np.arange(6.0).reshape(3, 2), np.arange(3)
        changed, _ = augment((images, labels), un.SampleRandom(seed=0, epoch=4, indices=[10, 11, 12]))
        changed.shape  # -> (3, 2)

    Args:
        seed: The seed of the training.
        epoch: The number of the epoch; the numbers differ from epoch to epoch.
        indices: The numbers of the samples of the batch.
    """

    def __init__(self, seed: int, epoch: int, indices: npt.ArrayLike) -> None:
        samples = np.atleast_1d(np.asarray(indices)).astype(np.int64).view(np.uint64)
        self._keys = _mixed(np.array([epoch_key(seed, epoch)]).view(np.uint64), samples)
        self._num_draws = 0

    def __len__(self) -> int:
        return len(self._keys)

    def uniform(self, low: float = 0.0, high: float = 1.0, shape: tuple[int, ...] = (), dtype: npt.DTypeLike = np.float32) -> Any:
        """Returns numbers that are evenly spread over low to high; high itself never appears.

        `low` must be below `high`. Local.

        Example:
            import unisono as un

            random = un.SampleRandom(seed=0, epoch=0, indices=[5, 6])
            random.uniform(0.9, 1.1, shape=(3, 1, 1)).shape  # -> (2, 3, 1, 1)

        Args:
            low: The smallest number.
            high: The bound above.
            shape: The shape for each sample; left out, one number for each.
            dtype: Element type; float32 unless told, so that float32 images stay float32.
        """
        if not low < high:
            raise UsageError(f"uniform needs low < high; received {low} and {high}")
        drawn = (low + (high - low) * self._fractions(shape)).astype(dtype)
        below = np.nextafter(*np.array([high, low], dtype=dtype))
        return np.minimum(drawn, below)  # rounding must not reach `high`

    def integers(self, low: int, high: int, shape: tuple[int, ...] = ()) -> npt.NDArray[np.int64]:
        """Returns whole numbers from low to high - 1, all equally likely.

        `low` must be below `high`, by at most 2**32. Local.

        Args:
            low: The smallest number.
            high: One more than the largest number.
            shape: The shape for each sample; left out, one number for each.
        """
        if not 0 < high - low <= 2**32:
            raise UsageError(f"integers needs low < high, at most 2**32 apart; received {low} and {high}")
        # The upper half times the span, divided by 2**32: no modulo, so no small number is preferred by more than 2**-32.
        scaled = (self._random_bits(shape) >> np.uint64(32)) * np.uint64(high - low) >> np.uint64(32)
        return scaled.astype(np.int64) + low

    def normal(self, shape: tuple[int, ...] = (), dtype: npt.DTypeLike = np.float32) -> Any:
        """Returns normally distributed numbers with mean 0 and standard deviation 1. Local.

        Args:
            shape: The shape for each sample; left out, one number for each.
            dtype: Element type; float32 unless told.
        """
        pair = self._fractions((2, *shape))
        radius = np.sqrt(-2.0 * np.log1p(-pair[:, 0]))
        return (radius * np.cos(2.0 * np.pi * pair[:, 1])).astype(dtype)

    def flip(self, probability: float = 0.5, shape: tuple[int, ...] = ()) -> npt.NDArray[np.bool_]:
        """Returns True with this probability, else False. Local.

        Args:
            probability: From 0 to 1.
            shape: The shape for each sample; left out, one value for each.
        """
        if not 0.0 <= probability <= 1.0:
            raise UsageError(f"a probability must lie in 0..1; received {probability}")
        return np.asarray(self._fractions(shape) < probability)

    def _fractions(self, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
        """Draws numbers in [0, 1), multiples of 2**-53."""
        return (self._random_bits(shape) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def _random_bits(self, shape: tuple[int, ...]) -> Bits:
        """Returns random bits of this shape for each sample; each draw gives others."""
        draw = _mixed(self._keys, np.array([self._num_draws], dtype=np.uint64))
        self._num_draws += 1
        positions = np.arange(prod(shape), dtype=np.uint64)
        return _mixed(draw[:, None], positions[None, :]).reshape(len(draw), *shape)


def epoch_key(seed: int, epoch: int) -> int:
    """Pure: returns what the samples' numbers are mixed with in an epoch, as a signed number of 64 bits, which a tensor holds."""
    of_seed = _mixed(np.zeros(1, dtype=np.uint64), np.array([seed % 2**64], dtype=np.uint64))
    of_epoch = _mixed(of_seed, np.array([epoch % 2**64], dtype=np.uint64))
    return int(of_epoch.view(np.int64)[0])


def _mixed(key: Bits, number: Bits) -> Bits:
    """Pure: returns 64 random bits, a function of key and number."""
    bits = key + (number + np.uint64(1)) * np.uint64(STRIDE)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(FACTORS[0])
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(FACTORS[1])
    mixed: Bits = bits ^ (bits >> np.uint64(31))
    return mixed

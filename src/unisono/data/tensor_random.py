"""`SampleRandom` on tensors: the same numbers, bit for bit, computed on the device on which the samples are.

Nothing waits for the device, no shape and no branch depends on values, and all that varies from step to step is a tensor, so that
the draws can be part of a captured CUDA graph.

Torch has no arithmetic of unsigned 64 bits. Sums and products of signed numbers have the same bits; a shift to the right must not
repeat the sign. There is no `normal`: logarithm and cosine of NumPy, of torch and of a GPU differ in their last bits.
"""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from torch import Tensor

from unisono.data.sample_random import FACTORS, STRIDE
from unisono.errors import UsageError

NUMPY_TYPES = ((torch.float32, np.float32), (torch.float64, np.float64))
"""Others are rounded otherwise by torch than by NumPy."""


class TensorRandom:
    """Random numbers for augmentation that belong to each sample, as tensors. The first axis of every result is the sample. Local,
    not blocking.

    `key` is `epoch_key(seed, epoch)` as an int64 tensor with one element, `samples` the numbers of the samples as an int64 tensor
    of one axis on the same device. As with `SampleRandom`, draw the same for every batch.
    """

    def __init__(self, key: Tensor, samples: Tensor) -> None:
        self._keys = _mixed(key.reshape(1), samples)
        self._num_draws = 0

    def __len__(self) -> int:
        return len(self._keys)

    def uniform(
        self, low: float = 0.0, high: float = 1.0, shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """As `SampleRandom.uniform`; `dtype` is float32 or float64."""
        if not low < high:
            raise UsageError(f"uniform needs low < high; received {low} and {high}")
        numpy_type = dict(NUMPY_TYPES).get(dtype)
        if numpy_type is None:
            raise UsageError(f"uniform gives float32 or float64 on tensors; received {dtype}")
        drawn = (low + (high - low) * self._fractions(shape)).to(dtype)
        below = np.nextafter(*np.array([high, low], dtype=numpy_type))
        return drawn.clamp(max=float(below))  # rounding must not reach `high`

    def integers(self, low: int, high: int, shape: tuple[int, ...] = ()) -> Tensor:
        """As `SampleRandom.integers`."""
        if not 0 < high - low <= 2**32:
            raise UsageError(f"integers needs low < high, at most 2**32 apart; received {low} and {high}")
        return _shifted(_shifted(self._random_bits(shape), 32) * (high - low), 32) + low

    def flip(self, probability: float = 0.5, shape: tuple[int, ...] = ()) -> Tensor:
        """As `SampleRandom.flip`."""
        if not 0.0 <= probability <= 1.0:
            raise UsageError(f"a probability must lie in 0..1; received {probability}")
        return self._fractions(shape) < probability

    def _fractions(self, shape: tuple[int, ...]) -> Tensor:
        """Draws numbers in [0, 1), multiples of 2**-53."""
        return _shifted(self._random_bits(shape), 11).to(torch.float64) * 2.0**-53

    def _random_bits(self, shape: tuple[int, ...]) -> Tensor:
        """Returns random bits of this shape for each sample; each draw gives others."""
        draw = _mixed(self._keys, self._num_draws)
        self._num_draws += 1
        positions = torch.arange(prod(shape), dtype=torch.int64, device=draw.device)
        return _mixed(draw[:, None], positions[None, :]).reshape(len(draw), *shape)


def _mixed(key: Tensor, number: Tensor | int) -> Tensor:
    """Pure: returns 64 random bits, a function of key and number: those of `SampleRandom`."""
    step = (number + 1) * _signed(STRIDE)
    bits = key + (_signed(step) if isinstance(step, int) else step)
    bits = (bits ^ _shifted(bits, 30)) * _signed(FACTORS[0])
    bits = (bits ^ _shifted(bits, 27)) * _signed(FACTORS[1])
    mixed: Tensor = bits ^ _shifted(bits, 31)
    return mixed


def _shifted(bits: Tensor, places: int) -> Tensor:
    """Pure: the bits moved to the right, with zeros on the left, also of numbers that count as negative."""
    moved: Tensor = (bits >> places) & (2 ** (64 - places) - 1)
    return moved


def _signed(number: int) -> int:
    """Pure: the number with the same 64 bits as a signed one."""
    return (number + 2**63) % 2**64 - 2**63

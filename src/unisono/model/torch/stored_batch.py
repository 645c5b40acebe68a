"""Batches of samples that lie on the device already: the host names their numbers, and the device gathers them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class StoredSamples(ABC):
    """Samples on a device, in the type in which they are stored, and the changes that make a batch of them."""

    device: torch.device
    compiles: bool
    """Whether `prepare` can be compiled with the model."""

    @abstractmethod
    def gather(self, numbers: Tensor) -> Any:
        """Local, on the device: the samples of these numbers, as they are stored."""

    @abstractmethod
    def prepare(self, stored: Any, numbers: Tensor, epoch_key: Tensor) -> Any:
        """Pure, on the device: the batch that the model is given. `epoch_key` decides what is drawn for each sample."""


@dataclass(frozen=True)
class StoredBatch:
    """One batch of stored samples."""

    samples: StoredSamples
    numbers: npt.NDArray[np.int64]
    epoch_key: int = 0

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, where: slice) -> StoredBatch:
        return replace(self, numbers=self.numbers[where])

    @property
    def nbytes(self) -> int:
        """Bytes that it has on the host."""
        return self.numbers.nbytes

    def gather(self, device: torch.device) -> Unprepared:
        """Local: the samples, gathered on the device."""
        numbers = torch.from_numpy(self.numbers).to(device, non_blocking=True)
        return Unprepared.of(self.samples, numbers, torch.tensor([self.epoch_key], device=device))


class Unprepared(NamedTuple):
    """Gathered samples before the changes, which are computed together with the model where that is compiled."""

    samples: StoredSamples
    stored: Any
    numbers: Tensor
    epoch_key: Tensor

    @classmethod
    def of(cls, samples: StoredSamples, numbers: Tensor, epoch_key: Tensor) -> Unprepared:
        """Local, on the device: gathers the samples of these numbers."""
        return cls(samples, samples.gather(numbers), numbers, epoch_key)

    def prepare(self) -> Any:
        """Pure, on the device: the batch that the model is given."""
        return self.samples.prepare(self.stored, self.numbers, self.epoch_key)

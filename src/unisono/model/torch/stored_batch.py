"""Batches in the form in which their samples are stored: they become what the model is given on the device, by declared changes.

Samples that lie on the device are named by their numbers and gathered there; others come from the host as they were read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class StoredSamples(ABC):
    """Samples in the type in which they are stored, and the changes that make a batch of them on a device."""

    device: torch.device
    channels_last: bool = False
    """Whether images that are copied to the device get their channels last in memory there."""
    compiles: bool
    """Whether `prepare` can be compiled with the model."""

    @abstractmethod
    def gather(self, numbers: Tensor) -> Any:
        """Local, on the device: the samples of these numbers, as they are stored there."""

    @abstractmethod
    def prepare(self, stored: Any, numbers: Tensor, epoch_key: Tensor) -> Any:
        """Pure, on the device: the batch that the model is given. `epoch_key` decides what is drawn for each sample."""


@dataclass(frozen=True)
class StoredBatch:
    """One batch of stored samples."""

    samples: StoredSamples
    numbers: npt.NDArray[np.int64]
    epoch_key: int = 0
    read: Any = None
    """Tensors of the host, where the samples do not lie on the device."""

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, where: slice) -> StoredBatch:
        read = None if self.read is None else map_leaves(lambda leaf: leaf[where], self.read)
        return replace(self, numbers=self.numbers[where], read=read)

    @property
    def nbytes(self) -> int:
        """Bytes that its numbers have on the host."""
        return self.numbers.nbytes

    def gather(self, device: torch.device) -> Unprepared:
        """Local: the samples, on the device."""
        numbers, key = torch.from_numpy(self.numbers).to(device, non_blocking=True), torch.tensor([self.epoch_key], device=device)
        if self.read is None:
            return Unprepared(self.samples, self.samples.gather(numbers), numbers, key)
        moved = map_leaves(lambda leaf: leaf.to(device, non_blocking=True), self.read)
        return Unprepared(self.samples, laid_out(moved, self.samples.channels_last), numbers, key)


class Unprepared(NamedTuple):
    """Samples on the device before the changes, which are computed together with the model where that is compiled."""

    samples: StoredSamples
    stored: Any
    numbers: Tensor
    epoch_key: Tensor

    def prepare(self) -> Any:
        """Pure, on the device: the batch that the model is given."""
        return self.samples.prepare(self.stored, self.numbers, self.epoch_key)


def laid_out(stored: Any, channels_last: bool) -> Any:
    """Local: a batch whose images among the inputs have their channels last in memory if so."""
    if not channels_last:
        return stored
    inputs, *others = stored
    return map_leaves(_with_channels_last, inputs), *others


def _with_channels_last(leaf: Tensor) -> Tensor:
    return leaf.contiguous(memory_format=torch.channels_last) if leaf.dim() == 4 else leaf


def map_leaves(do: Callable[[Any], Any], tree: Any) -> Any:
    """Pure: the same nesting of dicts and tuples with `do(leaf)` at each leaf."""
    if isinstance(tree, tuple):
        return tuple([map_leaves(do, part) for part in tree])
    if isinstance(tree, dict):
        return {name: map_leaves(do, part) for name, part in tree.items()}
    return do(tree)

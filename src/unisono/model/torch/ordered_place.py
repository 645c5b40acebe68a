"""The place of a training batch of stored samples: the order of an epoch lies on the device, and recorded work moves through it.

A copy from the host before each step would hold up the device longer than a small network computes. So recorded work ends by moving
to the batch that usually follows, and the host says something only where another one does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from unisono.model.torch.step_batches import CopiedTensors, Prepared
from unisono.model.torch.stored_batch import StoredBatch, Unprepared

MOST_BYTES = 2**26
"""Size of an order that is kept on the device; of a longer one each batch travels."""


class Position(NamedTuple):
    """Where the sample numbers of a batch stand."""

    order: npt.NDArray[np.int64]
    start: int


def position_of(numbers: npt.NDArray[np.int64]) -> Position:
    """Pure: the order of which these numbers are a part without gaps, and where they begin there; they themselves if that is not
    known."""
    order = numbers.base
    if not isinstance(order, np.ndarray) or order.dtype != numbers.dtype or order.ndim != 1 or order.nbytes > MOST_BYTES:
        return Position(numbers, 0)
    if not order.flags.c_contiguous or not numbers.flags.c_contiguous:
        return Position(numbers, 0)
    return Position(order, (numbers.ctypes.data - order.ctypes.data) // numbers.itemsize)


class OrderedPlace:
    """Where recorded work finds its batch. Local."""

    def __init__(self, batch: StoredBatch, prepared: Prepared, stride: int) -> None:
        """`stride`: places from one batch to the next that is computed by the same recording."""
        device, length = batch.samples.device, len(position_of(batch.numbers).order)
        self._samples, self._prepared, self._stride = batch.samples, prepared, stride
        self._copied = None if batch.read is None else CopiedTensors(batch.read, device, batch.samples.channels_last)
        self._on_device = torch.zeros(length, dtype=torch.int64, device=device)
        self._first = torch.arange(len(batch), dtype=torch.int64, device=device)
        self._at = self._first.clone()
        self._epoch_key = torch.zeros(1, dtype=torch.int64, device=device)
        self._order: npt.NDArray[np.int64] | None = None
        self._next, self._key = 0, 0

    def move_to(self, batch: StoredBatch) -> None:
        """Before the work: makes sure that it finds this batch."""
        order, start = position_of(batch.numbers)
        if order is not self._order:
            if len(order) > len(self._on_device):  # recorded work reads this memory, so it cannot grow
                order, start = batch.numbers, 0
            self._on_device[: len(order)].copy_(torch.from_numpy(order), non_blocking=True)
            self._order = order
        if start != self._next:
            torch.add(self._first, start, out=self._at)
        self._next = start + self._stride
        if batch.epoch_key != self._key:
            self._epoch_key.fill_(batch.epoch_key)
            self._key = batch.epoch_key
        if self._copied is not None:
            self._copied.copy(batch.read)

    def read(self) -> Any:
        """In the work: the batch, as `TorchAdapter.compute` takes it."""
        numbers = self._on_device.index_select(0, self._at)
        self._at.add_(self._stride)
        stored = self._samples.gather(numbers) if self._copied is None else self._copied.held
        return self._prepared(Unprepared(self._samples, stored, numbers, self._epoch_key))

"""How a batch comes into the fixed memory that recorded work reads: as sample numbers, or as arrays that are copied there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unisono.model.torch.step_inputs import Fields
from unisono.model.torch.stored_batch import StoredBatch, Unprepared

ToDevice = Callable[[Any], Any]
"""Moves a batch of arrays to the device, each in the type in which the model takes it."""


def shape_of(batch: Any) -> Hashable:
    """Pure: what decides whether a batch fits into the memory of another."""
    if isinstance(batch, StoredBatch):
        return id(batch.samples), len(batch)
    if isinstance(batch, dict):
        return tuple((name, shape_of(part)) for name, part in batch.items())
    if isinstance(batch, tuple):
        return tuple([shape_of(part) for part in batch])
    return tuple(batch.shape), str(batch.dtype)


def num_samples_of(batch: Any) -> int:
    """Pure: the number of samples of a batch."""
    while not hasattr(batch, "shape") and not isinstance(batch, StoredBatch):
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return len(batch)


class StepBatch(ABC):
    """The place of a batch in fixed memory of the device. Local."""

    fields: Fields
    """What of it travels with the other inputs of a step."""

    @abstractmethod
    def fill(self, arrays: Mapping[str, npt.NDArray[Any]], batch: Any) -> None:
        """Writes the fields of this batch. Starts the copy of what travels apart."""

    @abstractmethod
    def read(self, inputs: Mapping[str, Tensor]) -> Any:
        """On the device: the batch in fixed memory, as `TorchAdapter.compute` takes it."""


class NumberedBatch(StepBatch):
    """Samples that lie on the device: only their numbers travel."""

    def __init__(self, batch: StoredBatch, prepared: Callable[[Unprepared], Any]) -> None:
        self._samples = batch.samples
        self._prepared = prepared
        self.fields = {"numbers": (torch.int64, len(batch)), "epoch_key": (torch.int64, 1)}

    def fill(self, arrays: Mapping[str, npt.NDArray[Any]], batch: StoredBatch) -> None:
        arrays["numbers"][:] = batch.numbers
        arrays["epoch_key"][0] = batch.epoch_key

    def read(self, inputs: Mapping[str, Tensor]) -> Any:
        return self._prepared(Unprepared.of(self._samples, inputs["numbers"], inputs["epoch_key"]))


class CopiedBatch(StepBatch):
    """Arrays of the host: they are copied into tensors that stay."""

    fields: Fields = {}  # noqa: RUF012 - nothing writes it

    def __init__(self, batch: Any, to_device: ToDevice) -> None:
        self._to_device = to_device
        self._held = to_device(_copied(batch))

    def fill(self, arrays: Mapping[str, npt.NDArray[Any]], batch: Any) -> None:  # noqa: ARG002
        _copy_into(self._held, self._to_device(batch))

    def read(self, inputs: Mapping[str, Tensor]) -> Any:  # noqa: ARG002
        return self._held


def place_of(batch: Any, to_device: ToDevice, prepared: Callable[[Unprepared], Any]) -> StepBatch:
    """Local: makes the place for batches of this kind and size; `prepared` makes of gathered samples what a body takes."""
    return NumberedBatch(batch, prepared) if isinstance(batch, StoredBatch) else CopiedBatch(batch, to_device)


def _copied(batch: Any) -> Any:
    """A batch in memory of its own, as `to_device` may return the arrays themselves on a CPU."""
    if isinstance(batch, tuple):
        return tuple([_copied(part) for part in batch])
    if isinstance(batch, dict):
        return {name: _copied(part) for name, part in batch.items()}
    return batch.clone() if isinstance(batch, Tensor) else np.array(batch)


def _copy_into(held: Any, new: Any) -> None:
    """Starts the copy of every tensor of a batch into that of the place."""
    if isinstance(held, dict):
        for name, part in held.items():
            _copy_into(part, new[name])
    elif isinstance(held, tuple):
        for part, other in zip(held, new, strict=True):
            _copy_into(part, other)
    else:
        held.copy_(new, non_blocking=True)

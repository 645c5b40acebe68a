"""How a batch comes into the fixed memory that recorded work reads: as sample numbers, or as arrays that are copied there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unisono.model.torch.step_inputs import Fields
from unisono.model.torch.stored_batch import StoredBatch, Unprepared, laid_out, map_leaves

ToDevice = Callable[[Any], Any]
"""Moves a batch of arrays to the device, each in the type in which the model takes it."""
Prepared = Callable[[Unprepared], Any]
"""Makes of stored samples what a body takes."""


def shape_of(batch: Any) -> Hashable:
    """Pure: what decides whether a batch fits into the memory of another."""
    if isinstance(batch, StoredBatch):
        return id(batch.samples), len(batch), None if batch.read is None else shape_of(batch.read)
    if isinstance(batch, dict):
        return tuple((name, shape_of(part)) for name, part in batch.items())
    if isinstance(batch, tuple):
        return tuple([shape_of(part) for part in batch])
    return tuple(batch.shape), str(batch.dtype)


def num_samples_of(batch: Any) -> int:
    """Pure: the number of samples of a batch."""
    if isinstance(batch, Unprepared):
        return len(batch.numbers)
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


class NumberedPlace(StepBatch):
    """For stored samples. Those that lie on the device are gathered there by their numbers, the others are copied."""

    def __init__(self, batch: StoredBatch, prepared: Prepared) -> None:
        self._samples = batch.samples
        self._prepared = prepared
        self._copied = None if batch.read is None else CopiedTensors(batch.read, batch.samples.device, batch.samples.channels_last)
        self.fields = {"numbers": (torch.int64, len(batch)), "epoch_key": (torch.int64, 1)}

    def fill(self, arrays: Mapping[str, npt.NDArray[Any]], batch: StoredBatch) -> None:
        arrays["numbers"][:] = batch.numbers
        arrays["epoch_key"][0] = batch.epoch_key
        if self._copied is not None:
            self._copied.copy(batch.read)

    def read(self, inputs: Mapping[str, Tensor]) -> Any:
        numbers = inputs["numbers"]
        stored = self._samples.gather(numbers) if self._copied is None else self._copied.held
        return self._prepared(Unprepared(self._samples, stored, numbers, inputs["epoch_key"]))


class ArraysPlace(StepBatch):
    """For arrays of the host."""

    fields: Fields = {}  # noqa: RUF012 - nothing writes it

    def __init__(self, batch: Any, to_device: ToDevice) -> None:
        self._to_device = to_device
        # In memory of its own, as on a CPU the tensors may be the arrays themselves.
        self._held = to_device(map_leaves(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else np.array(leaf), batch))

    def fill(self, arrays: Mapping[str, npt.NDArray[Any]], batch: Any) -> None:  # noqa: ARG002
        self.move_to(batch)

    def move_to(self, batch: Any) -> None:
        """Starts the copy of a batch."""
        _copy_into(self._held, self._to_device(batch))

    def read(self, inputs: Mapping[str, Tensor] | None = None) -> Any:  # noqa: ARG002
        return self._held


class CopiedTensors:
    """Tensors on a device into which those of the host are copied, while the device still computes with the ones before.

    A copy from the host would wait for the kernels that were started before it. So it goes to one of two buffers, in a stream of
    its own, and from there into the tensors that recorded work reads, which takes the device next to no time."""

    def __init__(self, example: Any, device: torch.device, channels_last: bool = False) -> None:
        def empty() -> Any:
            return map_leaves(lambda leaf: torch.empty_like(leaf, device=device), example)

        self.held = laid_out(empty(), channels_last)
        self._is_cuda = device.type == "cuda"
        if self._is_cuda:
            self._device = device
            self._buffers = [empty(), empty()]
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._filled, self._emptied = ([torch.cuda.Event(), torch.cuda.Event()] for _ in range(2))  # type: ignore[no-untyped-call]
            self._turn = 0

    def copy(self, new: Any) -> None:
        """Starts the copy of these tensors of the host, in pinned memory on a GPU."""
        if not self._is_cuda:
            _copy_into(self.held, new)
            return
        computing, turn = torch.cuda.current_stream(self._device), self._turn
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._emptied[turn])
            _copy_into(self._buffers[turn], new)
            self._filled[turn].record(self._stream)
        computing.wait_event(self._filled[turn])
        _copy_into(self.held, self._buffers[turn])
        self._emptied[turn].record(computing)
        self._turn = 1 - turn


def place_of(batch: Any, to_device: ToDevice, prepared: Prepared) -> StepBatch:
    """Local: makes the place for batches of this kind and size."""
    return NumberedPlace(batch, prepared) if isinstance(batch, StoredBatch) else ArraysPlace(batch, to_device)


def leaves(tree: Any) -> Iterator[Any]:
    """Pure: yields the leaves of a nesting of dicts and tuples."""
    if isinstance(tree, (tuple, dict)):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(part)
    else:
        yield tree


def _copy_into(held: Any, new: Any) -> None:
    """Starts the copy of every tensor of a nesting into that of another."""
    for one, other in zip(leaves(held), leaves(new), strict=True):
        one.copy_(other, non_blocking=True)

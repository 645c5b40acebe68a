"""Data for a GPU. A sample is copied there once, in the type in which it is stored, and batches are gathered there; where the data
do not fit, each batch travels as it is stored. Changes that are declared are computed on the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unisono.data.data_differences import PART_NAMES, is_far
from unisono.data.declared import is_declared
from unisono.data.fingerprint import runs_user_code, sums_of
from unisono.data.loader import augmented
from unisono.data.sample_random import SampleRandom, epoch_key
from unisono.data.source import Indices, Mapped, Source, Subset
from unisono.data.splits import Splits
from unisono.data.streamed_reads import StreamedReads, read_in
from unisono.data.tensor_random import TensorRandom
from unisono.data.tree import leaves, map_tree, num_bytes, num_rows
from unisono.model.targets import HALVES
from unisono.model.torch.adapter import TorchAdapter
from unisono.model.torch.stored_batch import StoredBatch, StoredSamples
from unisono.training.gpu_precision import has_channels_last
from unisono.training.parts_on_device import DevicePart, PartsOnDevice

SHARE = 0.4
"""Share of the free memory of a GPU that data may take: a training needs the rest."""
PIECE_BYTES = 2**27
"""Bytes that are read and copied at a time."""
TRIED = 8
"""Samples that are read twice where code of a user changes them."""
GATHERED = frozenset({"uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool"})
"""Types of arrays whose elements torch can gather on a GPU."""


class DeviceSamples(StoredSamples):
    """The samples of a source, and the changes that are declared: they are computed on the device, for every batch."""

    def __init__(self, device: torch.device, changes: Sequence[Any], augment: Any, dtype: torch.dtype) -> None:
        self.device = device
        self.compiles = augment is None  # Triton does not take the constants of its random numbers
        self._changes = changes
        self._augment = augment
        self._dtype = dtype
        self._of_others = torch.float32 if dtype in HALVES else dtype

    def prepare(self, stored: Any, numbers: Tensor, epoch_key: Tensor) -> Any:
        batch = stored
        for change in self._changes:
            batch = (change.on_tensors(batch[0]), *batch[1:])
        if self._augment is not None:
            batch = self._augment.on_tensors(batch, TensorRandom(epoch_key, numbers))
        inputs, *others = batch
        return _with_floats_as(inputs, self._dtype), *[_with_floats_as(part, self._of_others) for part in others]

    def key_of(self, seed: int, epoch: int) -> int:
        """Pure: the key of what is drawn in an epoch of a training with this seed."""
        return 0 if self._augment is None else epoch_key(seed, epoch)


class ResidentSamples(DeviceSamples):
    """Samples that lie on the device."""

    def __init__(self, stored: Any, changes: Sequence[Any], augment: Any, dtype: torch.dtype) -> None:
        super().__init__(next(leaf.device for _, leaf in leaves(stored)), changes, augment, dtype)
        self._stored = stored
        self.num_bytes = num_bytes(stored)

    def gather(self, numbers: Tensor) -> Any:
        return map_tree(partial(_gather, numbers), self._stored)

    def batch(self, indices: Indices, seed: int = 0, epoch: int = 0) -> StoredBatch:
        """Local: the batch of these samples in an epoch of a training with this seed."""
        return StoredBatch(self, indices, self.key_of(seed, epoch))


class StreamedSamples(DeviceSamples):
    """Samples that the host reads for each batch: they travel as they are stored, in pinned memory."""

    def __init__(self, part: Source, device: torch.device, dtype: torch.dtype, augment: Any, channels_last: bool = False) -> None:
        declared = augment if is_declared(augment) else None
        self._host_augment = None if augment is declared else augment
        # What a function of the user gets has all changes before it.
        base, indices, changes = (part, np.arange(len(part)), []) if self._host_augment is not None else _without_declared(part)
        self._source, self._indices = base, indices
        super().__init__(device, changes, declared, dtype)
        self.channels_last = channels_last

    def gather(self, numbers: Tensor) -> Any:
        # A batch of these brings what was read, so nothing asks for this; a mistake in the code is loud.
        raise NotImplementedError("these samples do not lie on the device")

    def batch(self, indices: Indices, seed: int = 0, epoch: int = 0) -> StoredBatch:
        """Local, blocking: reads these samples as they are in an epoch of a training with this seed."""
        read = read_in(self._source, self._indices[indices], seed, epoch)
        if self._host_augment is not None:
            read = augmented(self._host_augment, read, SampleRandom(seed, epoch, indices))
        if self.device.type != "cuda":
            return StoredBatch(self, indices, self.key_of(seed, epoch), map_tree(_as_tensor, read))
        with torch.cuda.device(self.device):  # a thread that reads ahead would open another one
            pinned = map_tree(lambda leaf: _as_tensor(leaf).pin_memory(), read)
        return StoredBatch(self, indices, self.key_of(seed, epoch), pinned)


def place(
    part: Source, device: torch.device, dtype: torch.dtype, augment: Any, free_bytes: int, channels_last: bool = False
) -> ResidentSamples | str:
    """Local, blocking for one read of all samples: copies them to the device. Returns why not where that cannot be, or where they
    need more than `free_bytes`."""
    if augment is not None and not is_declared(augment):
        return "augment of the task is a function, which runs on the host; those of un.augment run on the GPU"
    if isinstance(part, StreamedReads):
        return "their reading draws random numbers"
    base, indices, changes = _without_declared(part)
    first = base.read(indices[:TRIED])
    if runs_user_code(base) and _differ(first, base.read(indices[:TRIED])):
        return "two readings of the same sample differ"
    if strange := {str(np.asarray(leaf).dtype) for _, leaf in leaves(first)} - GATHERED:
        return f"they have the type {', '.join(sorted(strange))}"
    total = num_bytes(first) * len(indices) // num_rows(first)
    if total > free_bytes:
        return f"they need {total / 1e9:.1f} GB, more than {free_bytes / 1e9:.1f} GB, which leaves room for the training"
    inputs, *others = first
    stored = (
        map_tree(partial(_empty_like, len(indices), device, channels_last), inputs),
        *[map_tree(partial(_empty_like, len(indices), device, False), part) for part in others],
    )
    step = max(1, PIECE_BYTES * len(indices) // max(1, total))
    for start in range(0, len(indices), step):
        piece = base.read(indices[start : start + step])
        for (_, target), (_, leaf) in zip(leaves(stored), leaves(piece), strict=True):
            target[start : start + step].copy_(_as_tensor(leaf))
    found = ResidentSamples(stored, changes, augment, dtype)
    _try(found, device, len(indices))
    return found


def put_on_device(splits: Splits, augment: Any, adapter: TorchAdapter, keeps: bool) -> PartsOnDevice:
    """Local, blocking for one read of all samples: with `keeps` copies the parts of the data to the device that fit there; the
    others are read for each batch."""
    device, dtype = adapter.device, adapter.dtype
    found, notes, held = dict[str, DevicePart](), [], dict[str, int]()
    for name, part in splits.parts().items():
        of_part = augment if name == "train" else None
        room = int(SHARE * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else PIECE_BYTES
        placed = place(part, device, dtype, of_part, room, has_channels_last(adapter.model)) if keeps else ""
        if isinstance(placed, str):
            found[name] = DevicePart(
                part, StreamedSamples(part, device, dtype, of_part, has_channels_last(adapter.model)), reads=True
            )
            if placed:
                notes.append(f"the {PART_NAMES[name]} data are read by the host in every epoch: {placed}")
        else:
            found[name] = DevicePart(part, placed, reads=False)
            held[name] = placed.num_bytes
    if held:
        names = " and ".join(PART_NAMES[name] for name in held)
        size = f"{sum(held.values()) / 1e6:,.1f} MB"
        notes.insert(0, f"the {names} data lie on the GPU ({size}; --resident off reads them in every epoch)")
    return PartsOnDevice(found, "; ".join(notes))


def _without_declared(part: Source) -> tuple[Source, Indices, list[Any]]:
    """Returns what is stored: the source inside of the outermost changes that are declared, the numbers of the samples there, and
    these changes in their order."""
    indices, changes = np.arange(len(part)), list[Any]()
    while True:
        if isinstance(part, Subset):
            indices, part = part.indices[indices], part.source
        elif isinstance(part, Mapped) and part.inputs_only and is_declared(part.change):
            changes.insert(0, part.change)
            part = part.source
        else:
            return part, indices, changes


def _differ(first: Any, again: Any) -> bool:
    sums, others = dict(sums_of(first)), dict(sums_of(again))
    return any(is_far(one, others.get(where)) for where, one in sums.items())


def _as_tensor(leaf: Any) -> Tensor:
    return leaf if isinstance(leaf, Tensor) else torch.from_numpy(np.ascontiguousarray(leaf))


def _gather(numbers: Tensor, held: Tensor) -> Tensor:
    """These samples of a tensor, in the order in memory in which they lie there."""
    if held.dim() == 4 and not held.is_contiguous():
        return held.permute(0, 2, 3, 1).index_select(0, numbers).permute(0, 3, 1, 2)
    return held.index_select(0, numbers)


def _empty_like(length: int, device: torch.device, channels_last: bool, leaf: Any) -> Tensor:
    """Returns memory on the device for as many samples like those of an array, of images with their channels last if so."""
    array = np.asarray(leaf)
    order = torch.channels_last if channels_last and array.ndim == 4 else torch.contiguous_format
    dtype = torch.from_numpy(array[:0]).dtype
    return torch.empty((length, *array.shape[1:]), dtype=dtype, device=device, memory_format=order)


def _with_floats_as(tree: Any, dtype: torch.dtype) -> Any:
    return map_tree(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, tree)


def _try(samples: ResidentSamples, device: torch.device, length: int) -> None:
    """Computes the changes once, which copies their constants to the device."""
    numbers = torch.arange(min(2, length), device=device)
    samples.prepare(samples.gather(numbers), numbers, torch.zeros(1, dtype=torch.int64, device=device))

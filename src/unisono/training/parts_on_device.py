"""The parts of the data whose batches are made on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from unisono.data.loader import one_at_a_time, read_ahead
from unisono.data.source import Indices, Source
from unisono.data.streamed_reads import StreamedReads
from unisono.model.torch.stored_batch import StoredBatch


class BatchesOfSamples(Protocol):
    """Samples of which batches are made on a device."""

    def batch(self, indices: Indices, seed: int, epoch: int) -> StoredBatch:
        """Local: the batch of these samples in an epoch of a training with this seed."""


@dataclass(frozen=True)
class DevicePart:
    """One part of the data."""

    source: Source
    samples: BatchesOfSamples
    reads: bool
    """Whether the host reads each batch, as the samples do not lie on the device."""

    def batches(self, where: slice, batch: int) -> Iterator[tuple[slice, StoredBatch]]:
        """Local: yields a range of samples in batches, in order, with the position of each."""
        ranges = (slice(start, min(start + batch, where.stop)) for start in range(where.start, where.stop, batch))
        jobs = (partial(self._batch_at, one) for one in ranges)
        ahead = self.reads and not isinstance(self.source, StreamedReads)
        return read_ahead(jobs) if ahead else one_at_a_time(jobs)

    def _batch_at(self, where: slice) -> tuple[slice, StoredBatch]:
        return where, self.samples.batch(np.arange(where.start, where.stop), 0, 0)


@dataclass(frozen=True)
class PartsOnDevice:
    """The parts of the data, and what a user should know of them."""

    parts: Mapping[str, DevicePart] = field(default_factory=dict)
    """By their names."""
    note: str = ""

    @property
    def train(self) -> DevicePart | None:
        """The training data; None where they are not made on a device."""
        return self.parts.get("train")

    def batches_of(self, source: Source) -> Callable[[slice, int], Iterator[tuple[slice, StoredBatch]]] | None:
        """Pure: the function that gives the batches of a range of this part, to evaluate it; None where it is read as it is."""
        return next((part.batches for part in self.parts.values() if part.source is source), None)

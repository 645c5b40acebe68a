"""The parts of the data that lie on a GPU, and how a training gets its batches from there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from unisono.data.source import Indices, Source
from unisono.model.torch.stored_batch import StoredBatch


class NumberedSamples(Protocol):
    """Samples on a device, by their numbers."""

    def batch(self, indices: Indices, seed: int, epoch: int) -> StoredBatch:
        """Local: the batch of these samples in an epoch of a training with this seed."""


@dataclass(frozen=True)
class PartsOnDevice:
    """The parts of the data that lie on a device, and what a user should know of it."""

    samples: Mapping[str, tuple[Source, NumberedSamples]] = field(default_factory=dict)
    """By the name of the part."""
    note: str = ""

    def training_batches(self, seed: int) -> Callable[[Indices, int], StoredBatch] | None:
        """Pure: the function that gives the batch of these training samples in an epoch; None where they are read."""
        if "train" not in self.samples:
            return None
        found = self.samples["train"][1]
        return lambda indices, epoch: found.batch(indices, seed, epoch)

    def batches_of(self, source: Source) -> Callable[[slice, int], Iterator[tuple[slice, StoredBatch]]] | None:
        """Pure: the function that gives the batches of a range of this part, to evaluate it; None where it is read."""
        found = next((samples for held, samples in self.samples.values() if held is source), None)
        return None if found is None else partial(_in_order, found)


def _in_order(samples: NumberedSamples, where: slice, batch: int) -> Iterator[tuple[slice, StoredBatch]]:
    """Local: yields a range of samples in batches, in order, with the position of each."""
    for start in range(where.start, where.stop, batch):
        stop = min(start + batch, where.stop)
        yield slice(start, stop), samples.batch(np.arange(start, stop), 0, 0)

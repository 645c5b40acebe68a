"""Loads a worker's rows of every batch of a stream, which every worker reads; that all of them read the same is checked with every
batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from unisono.comm.base import Communicator
from unisono.data.fingerprint import fingerprint
from unisono.data.loader import Portion
from unisono.data.sharding_plan import Plan, cut
from unisono.data.sources.arrays import Arrays
from unisono.data.tree import map_tree, num_rows
from unisono.errors import UsageError
from unisono.keras._impl.fit_inputs import as_nested_arrays, as_training_batch, rows
from unisono.keras._impl.streams import Stream
from unisono.training.same_data import expect_same_fingerprints

COMPARED_ROWS = 16
"""Of each batch, whose labels are compared whole."""


@dataclass
class StreamLoader:
    """The loader of one fit. Collective with several workers, which compare what they have read."""

    stream: Stream
    comm: Communicator
    plan: Plan
    class_weight: Mapping[int, float] | None = None
    shard: int = 0
    num_shards: int = 1
    own_shards: None = None
    first_epoch: int = 0
    """First epoch of the fit, for streams that do not restart with each epoch."""
    _num_read: int = field(default=0, init=False)
    _num_begun: int = field(default=0, init=False)
    """Epochs whose begin the stream was told of."""
    _is_read: bool = field(default=False, init=False)
    """Whether the last batch of the epoch was read, and the stream not told of the end."""
    _passes: Iterator[Any] | None = field(default=None, init=False)

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Portion]:
        """Collective, blocking: yields this worker's part of each batch of an epoch, from `first_step` on."""
        steps = self.plan.steps_per_epoch
        self._begin_epoch(epoch)
        batches = self._batches_of(epoch)
        used = (epoch - self.first_epoch) * steps + first_step
        missing = first_step if self.stream.restarts_each_epoch else used - self._num_read
        for _ in range(missing):
            self._next_batch(batches, 0)
        seen = 0
        for step in range(first_step, steps):
            batch = as_training_batch(as_nested_arrays(self._next_batch(batches, step)), self.class_weight)
            if self.comm.size > 1:
                where = f"the {self.stream.kind} in x (epoch {epoch + 1}, step {step + 1})"
                expect_same_fingerprints(self.comm, {where: fingerprint(Arrays(*batch), COMPARED_ROWS)})
            own = cut(num_rows(batch), self.num_shards, self.shard)
            indices = np.arange(seen + own.start, seen + own.stop)
            seen += num_rows(batch)
            part = map_tree(partial(rows, own), batch)
            self._is_read = step == steps - 1
            yield Portion(indices, (part,) if len(indices) else ())

    def end_epoch(self) -> None:
        """Local: tells the stream of the end of an epoch that was read to its end. Called when its last batch is used no more."""
        if self._is_read:
            self._is_read = False
            self.stream.end_epoch()

    def _begin_epoch(self, epoch: int) -> None:
        """Tells the stream that an epoch begins; before it those of an earlier attempt of the fit, as it may change with each."""
        self.end_epoch()
        for _ in range(self._num_begun, epoch - self.first_epoch):
            self.stream.begin_epoch()
            self.stream.end_epoch()
        self.stream.begin_epoch()
        self._num_begun = epoch - self.first_epoch + 1

    def _batches_of(self, epoch: int) -> Iterator[Any]:
        """Returns the batches of an epoch, or of a stream that continues those that come next."""
        if self.stream.restarts_each_epoch:
            return self.stream.read_seeded_pass(epoch, self.plan.seed)
        self._passes = self._passes or self.stream.read_passes(self.plan.seed)
        return self._passes

    def _next_batch(self, batches: Iterator[Any], step: int) -> Any:
        """Returns the next batch of the stream; refuses a stream that ends too early."""
        found = next(batches, None)
        if found is None:
            raise UsageError(
                f"the {self.stream.kind} ended after {step} of {self.plan.steps_per_epoch} steps; make it longer (repeat), or "
                "reduce steps_per_epoch"
            )
        self._num_read += 1
        return found

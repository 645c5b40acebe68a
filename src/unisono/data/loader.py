"""Loads one worker's part of every step, prefetched where reading takes time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np

from unisono.data.declared import DeclaredChange
from unisono.data.sample_random import SampleRandom
from unisono.data.sharding_plan import Plan, cut
from unisono.data.source import Indices, Source
from unisono.data.streamed_reads import StreamedReads, read_in
from unisono.data.tree import num_bytes, num_rows
from unisono.errors import UsageError

T = TypeVar("T")
READ_AHEAD = 3
"""Number of steps that are read before they are needed."""

BURST, BURST_BYTES = 16, 2**19
"""Number of small steps in memory that are prepared at a time: the same code takes several times as long where other code ran
between."""

Augment = Callable[[Any, SampleRandom], Any]


class Portion(NamedTuple):
    """The samples that one worker computes in one step."""

    indices: Indices
    """Sample numbers; empty where a short batch has too few samples for all workers."""
    micro_batches: tuple[Any, ...]
    """One or several, or, of a batch that is cut into shards, one for each shard; None for a shard without samples."""


@dataclass
class Loader:
    """The training data of one worker. Local; by the plan all workers agree."""

    source: Source
    plan: Plan
    shard: int
    num_shards: int
    accumulate: int = 1
    augment: Augment | None = None
    never_empty: bool = False
    """Whether a worker without a sample of a short batch gets the first of the batch, to be computed and not counted."""
    own_shards: range | None = None
    """Those of `num_shards` that this worker computes, each as a micro-batch of its own; None where it has just `shard`."""
    prefetches: bool = False
    """Whether a thread prepares the next steps also where the data are in memory, as preparation takes time beside a GPU."""

    stored: Callable[[Indices, int, int], Any] | None = None
    """Gives the batch of these samples with a seed and an epoch, where a device changes them; it has `nbytes`."""
    reads: bool = True
    """Whether the host reads the samples, as they do not lie on a device."""

    _orders: dict[int, Indices] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if isinstance(self.augment, DeclaredChange):
            raise UsageError(
                f"augment of the task is {self.augment!r}, which changes inputs and draws nothing; give it to the data, also for "
                f"evaluations: source.map_inputs({self.augment!r})"
            )

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Portion]:
        """Local, blocking: yields the portions of an epoch in the order of its steps. Close it to end early."""
        order = self._order_of(epoch)

        def job(step: int) -> Callable[[], Portion]:
            if self.own_shards is not None:
                parts = [order[self.plan.part(step, shard, self.num_shards)] for shard in self.own_shards]
                return lambda: Portion(
                    np.concatenate(parts), tuple(self._augmented_batch(part, epoch) if len(part) else None for part in parts)
                )
            own = order[self.plan.part(step, self.shard, self.num_shards)]
            return lambda: (
                self._read_portion(own, epoch) if len(own) or not self.never_empty else self._placeholder(step, order, epoch)
            )

        jobs = (job(step) for step in range(first_step, self.plan.steps_per_epoch))
        waits = self.prefetches and not isinstance(self.source, StreamedReads)
        stays = not self.reads or (self.source.in_memory and not waits)
        found = in_bursts(jobs) if stays else read_ahead(jobs)
        return self._with_next_order(found, epoch) if self.prefetches else found

    def _with_next_order(self, portions: Iterator[Portion], epoch: int) -> Iterator[Portion]:
        """Yields the portions of an epoch, while a thread computes the order of the next: a sort of all samples."""
        with ThreadPoolExecutor(1, thread_name_prefix="unisono-order") as thread:
            following = thread.submit(self.plan.order, epoch + 1)
            try:
                yield from portions
            finally:  # a trainer that has all portions does not ask for more
                self._orders = {epoch + 1: following.result()}

    def _order_of(self, epoch: int) -> Indices:
        """The order of an epoch, which may be computed already."""
        found = self._orders.pop(epoch, None)
        return self.plan.order(epoch) if found is None else found

    def usual_sizes(self) -> frozenset[int]:
        """Pure: the numbers of samples of this worker's batches, or micro-batches, in all steps but the last of an epoch."""
        shards = (self.shard,) if self.own_shards is None else self.own_shards
        lengths = [self.plan.part(0, shard, self.num_shards) for shard in shards]
        sizes = [part.stop - part.start for part in lengths]
        return frozenset(
            (piece := cut(size, min(self.accumulate, size), number)).stop - piece.start
            for size in sizes
            for number in range(min(self.accumulate, size))
        )

    def portion(self, epoch: int, step: int) -> Portion:
        """Local, blocking: returns a single portion, for a worker that gets the number of its next step from a server."""
        order = self._orders.get(epoch)
        if order is None:
            for old in sorted(self._orders)[:-1]:  # two epochs may be under way at a time
                del self._orders[old]
            order = self._orders[epoch] = self.plan.order(epoch)
        return self._read_portion(order[self.plan.part(step, self.shard, self.num_shards)], epoch)

    def _read_portion(self, indices: Indices, epoch: int) -> Portion:
        """Reads these samples, in as many micro-batches as gradients are accumulated over."""
        pieces = min(self.accumulate, len(indices))
        if pieces == 1:
            return Portion(indices, (self._augmented_batch(indices, epoch),))
        slices = [cut(len(indices), pieces, piece) for piece in range(pieces)]
        return Portion(indices, tuple(self._augmented_batch(indices[where], epoch) for where in slices))

    def _placeholder(self, step: int, order: Indices, epoch: int) -> Portion:
        """Returns a portion of no samples that holds one of the step's samples, for a rank without any."""
        start = self.plan.batch(step).start
        return Portion(order[:0], (self._augmented_batch(order[start : start + 1], epoch),))

    def _augmented_batch(self, indices: Indices, epoch: int) -> Any:
        """Reads these samples as one batch, and augments it."""
        if self.stored is not None:
            return self.stored(indices, self.plan.seed, epoch)
        batch = read_in(self.source, indices, self.plan.seed, epoch)
        return batch if self.augment is None else augmented(self.augment, batch, SampleRandom(self.plan.seed, epoch, indices))


def augmented(augment: Augment, batch: Any, random: SampleRandom) -> Any:
    """Local: a batch, changed by `augment` of a task; refuses another number of samples."""
    changed = augment(batch, random)
    if num_rows(changed, "the result of augment") != len(random):
        raise UsageError(f"augment must keep the number of samples: {len(random)} went in, {num_rows(changed)} came out")
    return changed


def batches_in_order(source: Source, where: slice, batch: int) -> Iterator[tuple[slice, Any]]:
    """Local, blocking: yields a range of a source in batches, in order, with the position of each."""

    def job(start: int) -> Callable[[], tuple[slice, Any]]:
        stop = min(start + batch, where.stop)
        return lambda: (slice(start, stop), source.read(np.arange(start, stop)))

    jobs = (job(start) for start in range(where.start, where.stop, batch))
    return one_at_a_time(jobs) if source.in_memory else read_ahead(jobs)


def one_at_a_time(jobs: Iterable[Callable[[], T]]) -> Iterator[T]:
    """Local: yields the results; each is computed when it is requested."""
    return (job() for job in jobs)


def in_bursts(jobs: Iterable[Callable[[], Portion]]) -> Iterator[Portion]:
    """Local: yields the portions in order; where they are small, several are made at a time. An error is raised in the place of
    its portion."""
    remaining, num = iter(jobs), 1
    failure: Exception | None = None
    while failure is None:
        made = []
        try:
            for job in islice(remaining, num):
                made.append(job())
        except Exception as error:  # noqa: BLE001 - raised below, when its turn comes
            failure = error
        if not made:
            break
        first_bytes = num_bytes(tuple(batch for batch in made[0].micro_batches if batch is not None))
        num = min(BURST, max(1, BURST_BYTES // max(1, first_bytes)))
        yield from made
    if failure is not None:
        raise failure


def read_ahead(jobs: Iterable[Callable[[], T]], depth: int = READ_AHEAD) -> Iterator[T]:
    """Local: yields the results in order; a thread computes up to `depth` of them ahead. An error of a job is raised in the
    place of its result."""
    waiting: deque[Future[T]] = deque()
    remaining = iter(jobs)
    with ThreadPoolExecutor(1, thread_name_prefix="unisono-data") as thread:
        try:
            waiting.extend(thread.submit(job) for job in islice(remaining, depth))
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(thread.submit(job) for job in islice(remaining, 1))
                yield result
        finally:  # whoever leaves early does not wait for what nobody will use
            for future in waiting:
                future.cancel()

"""Synchronous all-reduce whose result does not depend on the number of workers, to the last bit (`--shards S`).

The batch of every step is cut into S shards of fixed content. Each is computed by itself, with random numbers of its own, from the
same weights and running statistics, and what the shards give is summed in one fixed binary tree, whoever holds them:

    g  = (tree sum over shards of sum over their samples of grad) / (tree sum of their loss weights)
    w <- optimiser(w, g)
    running statistics <- before + (tree sum over shards of their change) / (number of shards with samples)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, ClassVar

import torch
from torch import Tensor

from unisono.algorithms.allreduce import AllReduce
from unisono.algorithms.base import Roles, StepInfo
from unisono.comm.ordered import OrderedSum
from unisono.comm.replicate import replicate
from unisono.errors import UsageError
from unisono.model.tail import StepStats


@dataclass(frozen=True)
class Options:
    """Of `--algorithm sharded`."""

    num_shards: int = 0
    """Set from `--shards`."""


@dataclass
class Sharded(AllReduce):
    """See the top of this file. Replicas are equal after every step, running statistics too."""

    Options: ClassVar[type[Any]] = Options
    keeps_equal: ClassVar[bool] = True

    @classmethod
    def plan(cls, options: Any, size: int) -> Roles:
        if size > options.num_shards:
            raise UsageError(
                f"{size} workers are more than the {options.num_shards} shards (--shards), so some would have nothing to do; "
                f"use at most {options.num_shards} workers, or more shards, which is another experiment"
            )
        return Roles(tuple(range(size)))

    def start(self) -> None:
        adapter = self.adapter
        replicate(self.comm, adapter.shared_state())
        self._waits = adapter.waits_for_device
        self._part = adapter.parts[""]
        self._part.cut(sys.maxsize)
        self._ranges = shards_of_all(self.options.num_shards, self.comm.size)
        self._own = self._ranges[self.comm.rank]
        self._sum = OrderedSum(self.comm, self._ranges)
        self._statistics = _Statistics(adapter.statistics(), adapter.counters, self._empty)
        self._travelling = [*self._part.gradients.values(), adapter.tail.vector, *self._statistics.changes]

    def step(self, micro_batches: Sequence[Any], at: StepInfo) -> Sequence[StepStats]:
        adapter, statistics = self.adapter, self._statistics
        began = perf_counter_ns()
        adapter.statistics()  # takes back what the user's code has put in their place
        statistics.begin()
        for shard, batch in zip(self._own, micro_batches, strict=True):
            adapter.clear_gradients()
            if shard == self._own.start and (at.stop or at.save):
                adapter.tail.vote(at.stop, at.save)
            if batch is None:
                adapter.skip()
            else:
                adapter.forward_backward(batch, at.key._replace(shard=shard))
                adapter.statistics()
            statistics.take_change(has_samples=batch is not None)
            self._sum.add(self._travelling)
        computed = perf_counter_ns()
        self._sum.finish()
        statistics.end()
        exchanged = perf_counter_ns()
        found = self._update("", at)
        if self.spans is not None:
            self.spans.add("compute", "forward and backward", began, computed)
            self.spans.add("communication", "ordered sum", computed, exchanged)
            self.spans.add("compute", "update", exchanged, perf_counter_ns())
        return found

    def _empty(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Where peers can read it, if the model computes there."""
        device = self.adapter.device
        return self.comm.empty(numel, dtype) if device == self.comm.device else torch.empty(numel, dtype=dtype, device=device)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any], size: int) -> None:
        """There is nothing besides the replicas."""

    def settle(self) -> None:
        """Nothing differs between steps."""


class _Statistics:
    """Running statistics and counters: every shard of a step begins with the same, and their changes are averaged.

    Vectors of `changes` travel with the gradient: one for each vector of statistics, and one with the changes of the counters and
    the number of shards that had samples."""

    def __init__(
        self, vectors: Sequence[Tensor], counters: Callable[[], list[Tensor]], empty: Callable[[int, torch.dtype], Tensor]
    ) -> None:
        self._vectors = [vector for vector in vectors if vector.numel()]
        self._before = [vector.clone() for vector in self._vectors]
        self._counted = [counter.clone() for counter in counters()]
        self._sizes = [counter.numel() for counter in self._counted]
        # The user's code may put other tensors in their places, so they are asked for again.
        self._counters = counters if self._counted else list
        self._counts = empty(1 + sum(self._sizes), torch.float64)
        of_vectors = [empty(vector.numel(), vector.dtype) for vector in self._vectors]
        self.changes = [*of_vectors, self._counts] if self._vectors or self._counted else []

    def begin(self) -> None:
        """Local: remember where all shards of the step begin."""
        for before, now in zip((*self._before, *self._counted), (*self._vectors, *self._counters()), strict=True):
            before.copy_(now)

    def take_change(self, has_samples: bool) -> None:
        """Local: what a shard changed, into `changes`; then all is as the step began."""
        for change, vector, before in zip(self.changes, self._vectors, self._before, strict=False):
            # What did not change keeps its bits, infinite numbers too.
            torch.sub(vector, before, out=change)
            change.masked_fill_(vector == before, 0)
            vector.copy_(before)
        self._counts[0] = float(has_samples)
        for place, counter, before in zip(self._places(), self._counters(), self._counted, strict=True):
            place.copy_((counter.double() - before.double()).reshape(-1))
            counter.copy_(before)

    def end(self) -> None:
        """Local: `changes` hold the sums over all shards."""
        num_shards = self._counts[:1]
        for change, vector in zip(self.changes, self._vectors, strict=False):
            vector.add_(change.div_(num_shards.to(change.dtype)))
        for place, counter in zip(self._places(), self._counters(), strict=True):
            moved = counter.double() + (place / num_shards).round().view(counter.shape)
            counter.copy_(moved)

    def _places(self) -> Sequence[Tensor]:
        return torch.split(self._counts[1:], self._sizes) if self._sizes else ()


def shards_of_all(num_shards: int, size: int) -> list[range]:
    """Pure: the shards that each of `size` workers computes: a stretch, in the order of ranks."""
    return [range(num_shards * rank // size, num_shards * (rank + 1) // size) for rank in range(size)]


ALGORITHM = Sharded

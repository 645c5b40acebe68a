"""Synchronous all-reduce whose result does not depend on the number of workers, to the last bit (`--shards S`).

The batch of every step is cut into S shards of fixed content. Each is computed by itself, with random numbers of its own, from the
same weights and running statistics, and what the shards give is summed in one fixed binary tree, wherever they were computed:

    g  = (tree sum over shards of sum over their samples of grad) / (tree sum of their loss weights)
    w <- optimiser(w, g)
    running statistics <- before + (tree sum over shards of their change) / (number of shards with samples)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Any, ClassVar

import torch
from torch import Tensor

from unisono.algorithms.allreduce import AllReduce
from unisono.algorithms.base import AlgorithmOptions, Examples, StepInfo
from unisono.algorithms.roles import DEFAULT_LAYOUT, LayoutOptions, LockStepRoles
from unisono.comm.ordered.ordered_sum import OrderedSum
from unisono.comm.replicate import replicate
from unisono.errors import UsageError
from unisono.model.base import StreamKey
from unisono.model.tail import StepStats
from unisono.model.torch.shard_state import ShardState


@dataclass(frozen=True)
class Options(AlgorithmOptions):
    """Options of `--algorithm sharded`."""

    num_shards: int = 0
    """Set from `--shards`."""


@dataclass
class Sharded(AllReduce):
    """See the top of this file. Replicas are equal after every step, running statistics too."""

    Options: ClassVar[type[Any]] = Options
    examples: ClassVar[Examples] = ({"shards": 4, "optimizer.momentum": 0.5},)
    keeps_equal: ClassVar[bool] = True

    @classmethod
    def plan(cls, options: Any, size: int, layout: LayoutOptions = DEFAULT_LAYOUT) -> LockStepRoles:
        if size > options.num_shards:
            raise UsageError(
                f"{size} workers are more than the {options.num_shards} shards (--shards), so some would have nothing to do; "
                f"use at most {options.num_shards} workers, or more shards, which changes the result"
            )
        return replace(super().plan(options, size, layout), shards=shards_of_all(options.num_shards, size))

    def start(self) -> None:
        adapter = self.adapter
        replicate(self.comm, adapter.shared_state())
        self._waits = adapter.waits_for_device
        self._part = adapter.parts[""]
        self._part.make_buckets(sys.maxsize)
        self._ranges = shards_of_all(self.options.num_shards, self.comm.size)
        self._own = self._ranges[self.comm.rank]
        self._sum = OrderedSum(self.comm, self._ranges)
        self.shard_state = ShardState(adapter, self._empty)
        self.captured = adapter.captured_steps()
        self._travelling = [*self._part.gradients.values(), adapter.tail.vector, *self.shard_state.changes]

    def step(self, micro_batches: Sequence[Any], at: StepInfo) -> Sequence[StepStats]:
        adapter, state = self.adapter, self.shard_state
        began = perf_counter_ns()
        adapter.keep_buffers()
        state.begin()
        for shard, batch in zip(self._own, micro_batches, strict=True):
            votes = (at.stop, at.save) if shard == self._own.start else (False, False)
            with _explain_ordered_sum(shard, at.step):
                self._compute_shard(batch, at.key._replace(shard=shard), votes)
            state.record_change(has_samples=batch is not None)
            self._sum.add(self._travelling)
        computed = perf_counter_ns()
        self._sum.finish()
        state.end()
        exchanged = perf_counter_ns()
        found = self._update("", at)
        if self.spans is not None:
            self.spans.add("compute", "forward and backward", began, computed)
            self.spans.add("communication", "ordered sum", computed, exchanged)
            self.spans.add("compute", "update", exchanged, perf_counter_ns())
        return found

    def _compute_shard(self, batch: Any, key: StreamKey, votes: tuple[bool, bool]) -> None:
        """Local: computes gradient and tail of one shard; `batch` is None where it has no samples."""
        adapter = self.adapter
        if batch is not None and self.captured is not None:
            self.captured.gradient(batch, key, votes, is_first=True)
            return
        adapter.clear_gradients()
        adapter.tail.request(*votes)
        if batch is None:
            adapter.skip()
        else:
            adapter.forward_backward(batch, key)

    def _empty(self, numel: int, dtype: torch.dtype) -> Tensor:
        """An empty vector in memory that peers can read, if the model computes there."""
        device = self.adapter.device
        return self.comm.empty(numel, dtype) if device == self.comm.device else torch.empty(numel, dtype=dtype, device=device)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any], size: int) -> None:
        """Does nothing: there is no state besides the replicas."""

    def synchronise(self) -> None:
        """Does nothing: replicas never differ between steps."""


@contextmanager
def _explain_ordered_sum(shard: int, step: int) -> Iterator[None]:
    """In this context an error of batch-norm with one sample says what to change."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" in str(error):
            raise UsageError(
                f"shard {shard} of step {step} has one sample, and batch-norm needs more ({error}); use fewer --shards, or a "
                "--global-batch that leaves no short batch at the end of an epoch"
            ) from error
        raise


def shards_of_all(num_shards: int, size: int) -> list[range]:
    """Pure: the shards that each of `size` workers computes: consecutive ones, in the order of ranks."""
    return [range(num_shards * rank // size, num_shards * (rank + 1) // size) for rank in range(size)]


ALGORITHM = Sharded

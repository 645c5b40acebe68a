"""Synchronous all-reduce: every step uses the exact gradient of the whole global batch.

    g  = (sum over workers of sum over their samples of grad) / (sum over workers of their loss weights)
    w <- optimiser(w, g)

Buckets of the gradient are reduced while the backward pass still computes the others (Li et al. 2020, PyTorch Distributed, VLDB);
the last one carries the tail. Sums are divided once, by the weight of all, so uneven parts are exact.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, ClassVar

import torch
from torch import Tensor

from unisono.algorithms.base import AlgorithmOptions, Examples, LockStepAlgorithm, ModelSize, StepInfo, Traffic, is_finite
from unisono.algorithms.rounds.statistics import RunningStatistics
from unisono.comm.base import Communicator, Work
from unisono.comm.replicate import replicate
from unisono.errors import UsageError
from unisono.model.flat import Bucket
from unisono.model.tail import StepStats
from unisono.model.torch.adapter import TorchAdapter
from unisono.model.torch.body import Outcome
from unisono.model.torch.own_step import OwnStep, StepFunction, loss_name
from unisono.model.torch.parameters import FlatParameters
from unisono.task.options import option


@dataclass(frozen=True)
class Options(AlgorithmOptions):
    """Options of `--algorithm allreduce`."""

    bucket_mb: float = option(8.0, "gradients are sent in pieces of about this many megabytes during the backward pass", above=0)


@dataclass
class AllReduce(LockStepAlgorithm):
    """See the top of this file."""

    adapter: TorchAdapter
    Options: ClassVar[type[Any]] = Options
    examples: ClassVar[Examples] = ({"optimizer.momentum": 0.5}, {"algorithm.bucket_mb": 0.0001})

    @classmethod
    def traffic(cls, options: Any, weights: ModelSize) -> Traffic:  # noqa: ARG003
        return Traffic(summed=weights.num_bytes)

    def start(self) -> None:
        replicate(self.comm, self.adapter.shared_state())
        self.begin()

    def begin(self) -> None:
        """Local: prepares the first step of replicas that are equal already."""
        # A worker by itself sends nothing early: one bucket, whose gradients are copied at once instead of added to zeros.
        self.captured = self.adapter.captured_steps()
        # A recorded backward pass sends nothing early either. What gives up later sends as before, as other ranks may not.
        self._records = self.captured is not None and not self.captured.reason
        in_buckets = self.comm.size > 1 and not self._records
        most_bytes = int(self.options.bucket_mb * 1e6) if in_buckets else sys.maxsize
        self._exchanges = {name: _Exchange(self.comm, part, most_bytes) for name, part in self.adapter.parts.items()}
        # A user's own step uses what each of its updates gave.
        self._waits = self.adapter.own_step is not None or self.adapter.waits_for_device
        self._statistics = RunningStatistics(self.adapter, self.comm.size)

    def step(self, micro_batches: Sequence[Any], at: StepInfo) -> Sequence[StepStats]:
        adapter = self.adapter
        if adapter.own_step is not None:
            return self._own_step(adapter.own_step, micro_batches[0], at)
        began = perf_counter_ns()
        if self.captured is not None and self.captured.updates and self.comm.size == 1 and len(micro_batches) == 1:
            is_kept = self.captured.step(micro_batches[0], at.key, (at.stop, at.save), at.settings[""])
            if self.spans is not None:
                self.spans.add("compute", "step", began, perf_counter_ns())
            return adapter.tail.send(at.step, is_kept)
        computed = self.gradient(micro_batches, at)
        exchanged = perf_counter_ns()
        found = self._update("", at)
        if self.spans is not None:
            self.spans.add("compute", "forward and backward", began, computed)
            self.spans.add("communication", "all-reduce", computed, exchanged)
            self.spans.add("compute", "update", exchanged, perf_counter_ns())
        return found

    def gradient(self, micro_batches: Sequence[Any], at: StepInfo) -> int:
        """Collective, blocking: computes the sums over all workers of gradient and tail, without an update. Returns the time, in
        nanoseconds of `perf_counter_ns`, at which this worker's own computation was over."""
        adapter, exchange = self.adapter, self._exchanges[""]
        if self._records and self.captured is not None and micro_batches:
            votes = (at.stop, at.save)
            for number, batch in enumerate(micro_batches, 1):
                key = at.key if number == len(micro_batches) else at.key._replace(micro=number)
                self.captured.gradient(batch, key, votes, is_first=number == 1)
            computed = perf_counter_ns()
            exchange.end(adapter.tail.vector)
            return computed
        adapter.keep_buffers()
        adapter.clear_gradients()
        if at.stop or at.save:
            adapter.tail.request(at.stop, at.save)
        for number, batch in enumerate(micro_batches[:-1], 1):
            adapter.forward_backward(batch, at.key._replace(micro=number))
        on_ready = exchange.begin()
        if micro_batches:
            adapter.forward_backward(micro_batches[-1], at.key, on_ready)
        else:
            adapter.skip(on_ready)
        computed = perf_counter_ns()
        exchange.end(adapter.tail.vector)
        return computed

    def _update(self, part: str, at: StepInfo) -> Sequence[StepStats]:
        """Updates this part of the model from the summed gradients; returns the sums of the steps that are known by now."""
        adapter = self.adapter
        if not self._waits:
            if self.captured is not None and not part:
                self.captured.update(at.settings[part])
            else:
                adapter.apply_on_device(at.settings[part], part)
            return adapter.tail.send(at.step)
        stats, uses = adapter.tail.read(at.step)
        if not stats.weight > 0 and is_finite(stats):
            return (stats,)  # no sample counts, so there is no update; the trainer says so
        used = uses[: len(adapter.parts[part].tensors)]
        if is_finite(stats) and adapter.apply_gradients(at.settings[part], stats.weight, used, part):
            return (stats,)
        adapter.put_back_buffers()
        return (stats.as_not_finite(),)

    def _own_step(self, user: StepFunction, batch: Any, at: StepInfo) -> Sequence[StepStats]:
        """Runs the task's own step, each of whose updates is exchanged when it calls `minimise`; returns the sums of the steps."""
        adapter = self.adapter
        found: dict[str, list[StepStats]] = {}
        num_samples = at.num_samples

        def minimise(total: Tensor, weight: Tensor | float, name: str) -> None:
            if name not in adapter.parts:
                known = ", ".join(repr(one) for one in adapter.parts)
                raise UsageError(f"minimise(..., {name!r}): the task has no optimizer of that name; known: {known}")
            part = adapter.parts[name]
            part.clear()
            adapter.tail.clear()
            adapter.tail.request(at.stop, at.save)
            try:
                adapter.backward(Outcome(total, weight, None, None, None, num_samples), part)
            except RuntimeError as error:
                if found and "modified by an inplace operation" in str(error):
                    raise UsageError(
                        f"the loss of minimise(..., {name!r}) was computed with weights that an earlier minimise of the same step "
                        "has changed since; compute it after that one, or without those weights (detach())"
                    ) from error
                raise
            adapter.tail.set_uses(part.used)
            self._exchanges[name].end(adapter.tail.vector)
            found.setdefault(name, []).extend(self._update(name, at))
            adapter.keep_buffers()
            torch.clear_autocast_cache()  # it holds copies of the weights as they were

        adapter.seed(at.key)
        adapter.keep_buffers()
        with adapter.autocast():
            own = OwnStep(adapter.model, at.step, adapter.device, num_samples, minimise, 1.0 if num_samples else 0.0)
            user(own, adapter.to_device(batch))
        if not found:
            raise UsageError("the task's own step never called minimise; call self.minimise(losses, name) for each update")
        return (_combine_updates(found),)

    def flush_stats(self) -> Sequence[StepStats]:
        return () if self._waits else self.adapter.tail.flush()

    def state(self) -> dict[str, Any]:
        return {"settled": self._statistics.before}

    def restore(self, state: Mapping[str, Any], size: int) -> None:
        if size == self.comm.size and "settled" in state:  # others begin with the mean of those before, as if just synchronised
            self._statistics.restore(state["settled"])

    def synchronise(self) -> None:
        """Replaces running statistics by their mean over all workers, and counters by those of rank 0."""
        replicate(self.comm, self.adapter.counters())
        self._statistics.synchronise(self.comm)


class _Exchange:
    """Reduces one part's gradient: each bucket as soon as it is complete, the last one with the tail."""

    def __init__(self, comm: Communicator, part: FlatParameters, most_bytes: int) -> None:
        self._comm = comm
        buckets = part.make_buckets(most_bytes)
        self._slices = {id(bucket): part.gradients[bucket.dtype][bucket.where] for bucket in buckets}
        self._last = id(buckets[-1])
        self._works: list[Work[None]] = []

    def begin(self) -> Callable[[Bucket], None] | None:
        """Local: returns the function to call with each complete bucket; None where no bucket is sent early."""
        return self._start_bucket if self._comm.size > 1 and len(self._slices) > 1 else None

    def _start_bucket(self, bucket: Bucket) -> None:
        """Starts the all-reduce of this bucket, unless it is the last, which is sent with the sums of the step."""
        if id(bucket) != self._last:
            self._works.append(self._comm.start_allreduce(self._slices[id(bucket)]))

    def end(self, tail: Tensor) -> None:
        """Collective, blocking: reduces the last bucket with the tail, and waits for the buckets that were sent before."""
        if self._comm.size == 1:
            return
        if not self._works:  # nothing was sent early: one grouped operation
            self._comm.allreduce([*self._slices.values(), tail])
            return
        self._comm.allreduce([self._slices[self._last], tail])
        for work in self._works:
            work.wait()
        self._works.clear()


def _combine_updates(found: dict[str, list[StepStats]]) -> StepStats:
    """Combines the updates of one step into one: its loss is the sum of the mean losses of its parts."""
    first = next(iter(found.values()))[0]
    named = {
        loss_name(name): (sum(one.loss_sum for one in several), sum(one.weight for one in several))
        for name, several in found.items()
    }
    loss = sum(total / weight for total, weight in named.values() if weight)
    return first._replace(
        loss_sum=loss * first.weight,
        num_not_finite=sum(one.num_not_finite for several in found.values() for one in several),
        named=named,
    )


ALGORITHM = AllReduce

"""A model as a worker of a server sees it: its weights, gradient and running statistics as one flat vector each.

Virtual workers share one model: each has a `VirtualWorkerState` that keeps its own vectors while the others compute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from unisono.algorithms.allreduce import AllReduce
from unisono.algorithms.base import GroupSettings, StepInfo, is_finite
from unisono.data.loader import Portion
from unisono.errors import UsageError
from unisono.model.tail import StepStats
from unisono.model.torch.adapter import TorchAdapter
from unisono.model.torch.frozen_parameters import FrozenParameters
from unisono.model.torch.optimizer_state import own_copy


@dataclass
class VirtualWorkerState:
    """The model state of one of several virtual workers, which share one model."""

    values: Tensor
    statistics: Tensor
    counters: list[Tensor]
    running: Optimizer
    optimizer: defaultdict[Any, Any]
    """The state of `running` for this worker."""


class Replica:
    """The model of one worker, or of a group of processes that act as one. Collective over the group where it says so."""

    def __init__(self, adapter: TorchAdapter, inside: AllReduce) -> None:
        part = adapter.parts[""]
        self.adapter = adapter
        self.inside = inside
        self.part = part
        (self.values,) = part.values.values()
        (self.gradient,) = part.gradients.values()
        running = _running_vectors(adapter)
        self.statistics = running[0] if running else self.values[:0]
        self._loaded: VirtualWorkerState | None = None
        self._frozen = FrozenParameters(adapter.model)
        self._num_computed = 0

    @property
    def num_tensors(self) -> int:
        """Number of parameter tensors that are trained."""
        return len(self.part.tensors)

    @property
    def num_sums(self) -> int:
        """Number of sums of the metrics that are computed in every step."""
        return self.adapter.tail.metric_sums.numel()

    def compute(self, portion: Portion, at: StepInfo) -> StepStats:
        """Collective over the group, blocking: computes a batch. `gradient` becomes the mean over its samples, or 0 where that is
        not finite. Returns the sums of the batch."""
        if not self._num_computed:
            self._frozen.note()
        began = perf_counter_ns()
        computed = self.inside.gradient(portion.micro_batches, at)
        if self.inside.spans is not None:
            self.inside.spans.add("compute", "forward and backward", began, computed)
            if self.inside.comm.size > 1:
                self.inside.spans.add("communication", "all-reduce in the group", computed, perf_counter_ns())
        self._check_frozen()
        stats, uses = self.adapter.tail.read(at.step)
        self.uses = uses[: self.num_tensors].copy()
        finite = is_finite(stats) and self.part.is_finite()
        if finite and stats.weight:
            self.part.scale(1.0 / stats.weight)
            return stats
        self.gradient.zero_()
        self.uses.fill(0)  # an optimiser then leaves everything as it is, whatever its momentum
        if finite:
            return stats
        self.adapter.put_back_buffers()
        return stats.as_not_finite()

    def _check_frozen(self) -> None:
        """Refuses a model that changes a frozen parameter itself, after 1, 2, 4, 8, ... batches: a teacher that is a mean of the
        weights moves only once they have, and virtual workers take turns."""
        self._num_computed += 1
        is_power_of_two = self._num_computed & (self._num_computed - 1) == 0
        if is_power_of_two and (name := self._frozen.changed()) is not None:
            raise UsageError(
                f"the model itself changes its frozen parameter {name}, as a momentum teacher does, but workers do not send those: "
                "the server's weights, which are evaluated and saved, would keep its first values; make it a buffer "
                "(register_buffer), or use --algorithm allreduce"
            )

    def synchronise_statistics(self) -> None:
        """Collective over the group, blocking: replaces the running statistics of each process by the mean over the group."""
        if self.inside.comm.size > 1:
            self.inside.synchronise()

    def optimise(self, settings: GroupSettings) -> None:
        """Local: moves the weights by `gradient` with the optimiser of the task."""
        self.adapter.apply_gradients(settings, 1.0, self.uses)

    def copy_worker(self) -> VirtualWorkerState:
        """Local: returns a copy of everything in the model that belongs to one worker."""
        counters = [counter.clone() for counter in self.adapter.counters()]
        running = self.part.running
        return VirtualWorkerState(
            self.values.clone(), self.statistics.clone(), counters, running, _copy_optimizer_state(running.state)
        )

    def load_worker(self, state: VirtualWorkerState) -> None:
        """Local: loads the state of one virtual worker into the model."""
        self.values.copy_(state.values)
        self.statistics.copy_(state.statistics)
        for counter, own in zip(self.adapter.counters(), state.counters, strict=True):
            counter.copy_(own)
        if self.part.running is not state.running:  # since a batch left out a parameter, each has a state of its own
            state.optimizer = self.part.split_state(state.optimizer)
            state.running = self.part.running
        state.running.state = state.optimizer
        self._loaded = state

    def store_worker(self, state: VirtualWorkerState) -> None:
        """Local: stores the model into the state of a virtual worker, if it is the one that is loaded."""
        if self._loaded is not state:
            return
        state.values.copy_(self.values)
        state.statistics.copy_(self.statistics)
        for counter, own in zip(self.adapter.counters(), state.counters, strict=True):
            own.copy_(counter)
        state.running, state.optimizer = self.part.running, self.part.running.state

    def reset(self, start: VirtualWorkerState) -> None:
        """Local: resets the model to `start`, a copy of the state that it had when it joined."""
        self.load_worker(replace(start, optimizer=_copy_optimizer_state(start.optimizer)))

    def state(self) -> dict[str, Any]:
        """Local: what `restore` needs of a worker that is not virtual: nested tensors, not copied, and plain values."""
        return {**self.adapter.state(), "kept": self.adapter.user_state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Local: resumes with what `state` gave."""
        with torch.no_grad():
            self.adapter.restore(state)


def check_model(adapter: TorchAdapter, name: str) -> None:
    """Local: refuses a model whose weights cannot travel as one vector."""
    if adapter.own_step is not None:
        raise UsageError(
            f"--algorithm {name} sends one gradient for each step, and the task's own step makes several; use allreduce"
        )
    values = adapter.parts[""].values
    if len(values) > 1:
        kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in values)
        raise UsageError(f"--algorithm {name} sends the weights as one vector, so they must be of one type; the model has {kinds}")
    (dtype,) = values
    if any(vector.dtype != dtype for vector in _running_vectors(adapter)):
        raise UsageError(f"--algorithm {name} sends running statistics with the weights, so they must be of the same type")


def _running_vectors(adapter: TorchAdapter) -> list[Tensor]:
    """Returns the running statistics that are not empty, as vectors."""
    return [vector for vector in adapter.statistics() if vector.numel()]


def _copy_optimizer_state(state: Mapping[Any, Mapping[str, object]]) -> defaultdict[Any, Any]:
    """Returns the optimiser's state with its tensors copied."""
    copied = {parameter: {name: own_copy(value) for name, value in own.items()} for parameter, own in state.items()}
    return defaultdict(dict, copied)

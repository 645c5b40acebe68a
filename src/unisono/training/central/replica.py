"""A model as a worker of a centre sees it: its weights, gradient and running statistics as one flat vector each.

Virtual workers share one model: each has a `Home` where its own vectors wait while the others compute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unisono.algorithms.allreduce import AllReduce
from unisono.algorithms.base import StepInfo, is_finite
from unisono.algorithms.central.rule import GroupSettings
from unisono.data.loader import Portion
from unisono.errors import UsageError
from unisono.model.tail import StepStats
from unisono.model.torch import TorchAdapter


@dataclass
class Home:
    """What one of several virtual workers owns of the model that they share."""

    values: Tensor
    statistics: Tensor
    counters: list[Tensor]
    optimizer: defaultdict[Any, Any]


class Replica:
    """The model of one worker, or of a group of processes that act as one. Collective over the group where it says so."""

    def __init__(self, adapter: TorchAdapter, inside: AllReduce, name: str) -> None:
        if adapter.own_step is not None:
            raise UsageError(
                f"--algorithm {name} sends one gradient for each step, and the task's own step makes several; use allreduce"
            )
        part = adapter.parts[""]
        if len(part.values) > 1:
            kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in part.values)
            raise UsageError(
                f"--algorithm {name} sends the weights as one vector, so they must be of one type; the model has {kinds}"
            )
        self.adapter = adapter
        self.inside = inside
        self.part = part
        (self.values,) = part.values.values()
        (self.gradient,) = part.gradients.values()
        running = [vector for vector in adapter.statistics() if vector.numel()]
        if any(vector.dtype != self.values.dtype for vector in running):
            raise UsageError(f"--algorithm {name} sends running statistics with the weights, so they must be of the same type")
        self.statistics = running[0] if running else self.values[:0]

    @property
    def num_tensors(self) -> int:
        return len(self.part.tensors)

    @property
    def num_sums(self) -> int:
        """Of the metrics that are followed."""
        return self.adapter.tail.metric_sums.numel()

    def compute(self, portion: Portion, at: StepInfo) -> StepStats:
        """Collective over the group, blocking: `gradient` becomes the mean over the batch, 0 where that is no finite number."""
        self.inside.gradient(portion.micro_batches, at)
        stats, uses = self.adapter.tail.read(at.step)
        self.uses = uses[: self.num_tensors].copy()
        if not (is_finite(stats) and self.part.is_finite()):
            self.gradient.zero_()
            return stats.as_not_finite()
        if stats.weight:
            self.part.scale(1.0 / stats.weight)
        return stats

    def optimise(self, settings: GroupSettings) -> None:
        """Local: the optimiser of the task."""
        self.adapter.apply_gradients(settings, 1.0, self.uses)

    def home(self) -> Home:
        """Local: a copy of all that belongs to one worker."""
        counters = [counter.clone() for counter in self.adapter.counters()]
        self._running = self.part.running
        return Home(self.values.clone(), self.statistics.clone(), counters, defaultdict(dict))

    def move_in(self, home: Home) -> None:
        """Local: the model becomes that of one virtual worker."""
        self.values.copy_(home.values)
        self.statistics.copy_(home.statistics)
        for counter, own in zip(self.adapter.counters(), home.counters, strict=True):
            counter.copy_(own)
        if self.part.running is not self._running:
            raise UsageError(
                "virtual workers share one optimiser, so every batch must use every parameter; simulate without --simulate"
            )
        self._running.state = home.optimizer

    def move_out(self, home: Home) -> None:
        """Local: keep what it has become."""
        home.values.copy_(self.values)
        home.statistics.copy_(self.statistics)
        for counter, own in zip(self.adapter.counters(), home.counters, strict=True):
            own.copy_(counter)
        home.optimizer = self._running.state

    def state(self) -> dict[str, Any]:
        """Local: of a real worker, any nesting of tensors, which are not copied, and plain values."""
        return {**self.adapter.state(), "kept": self.adapter.kept()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Local."""
        with torch.no_grad():
            self.adapter.restore(state)

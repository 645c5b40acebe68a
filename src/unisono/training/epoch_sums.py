"""Loss and metrics of an epoch of training: exact sums over its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unisono.metrics import Metric
from unisono.model.tail import StepStats


class EpochSums:
    """Exact sums over the steps of an epoch."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics
        self._sums = np.zeros(sum(metric.num_sums or 0 for metric in metrics))
        self._loss_sum = 0.0
        self._weight = 0.0
        self._named: dict[str, tuple[float, float]] = {}
        self.num_samples = 0
        self.took_s = 0.0
        self.waited_s = 0.0

    def state(self) -> dict[str, Any]:
        """Pure: plain values for `restore`."""
        held = {name.removeprefix("_"): value for name, value in vars(self).items() if name not in ("_metrics", "_sums")}
        return {**held, "sums": self._sums.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Local: resumes with what `state` gave."""
        self._sums = np.array(state["sums"], dtype=np.float64)
        self._loss_sum, self._weight = state["loss_sum"], state["weight"]
        self._named = {name: (value, weight) for name, (value, weight) in state["named"].items()}
        self.num_samples, self.took_s, self.waited_s = state["num_samples"], state["took_s"], state["waited_s"]

    def add_time(self, took_s: float = 0.0, waited_s: float = 0.0) -> None:
        """Local: adds seconds spent in steps, and seconds waited for data."""
        self.took_s += took_s
        self.waited_s += waited_s

    def add(self, stats: StepStats) -> None:
        """Adds the sums of one step: loss, weight, metrics, number of samples, logged values."""
        self._loss_sum += stats.loss_sum
        self._weight += stats.weight
        self._sums += stats.metric_sums
        self.num_samples += stats.num_samples
        for name, (value, weight) in stats.named.items():
            before = self._named.get(name, (0.0, 0.0))
            self._named[name] = (before[0] + value, before[1] + weight)

    def metrics_so_far(self) -> dict[str, float]:
        """Returns the training metrics, and the means of what was logged, over all steps added so far."""
        found, start = {}, 0
        for metric in self._metrics:
            width = metric.num_sums or 0
            found[metric.name] = metric.value(self._sums[start : start + width])
            start += width
        return found | {name: value / weight for name, (value, weight) in self._named.items() if weight}

    def values(self) -> dict[str, float]:
        """Returns the metrics: means over the samples seen, each with the weights of its step."""
        if not self._weight:
            return {}
        return {"loss": self._loss_sum / self._weight, **self.metrics_so_far()}

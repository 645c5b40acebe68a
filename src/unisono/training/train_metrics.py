"""Metrics of every training step: their sums travel with the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unisono.metrics import Metric


def summable_metrics(metrics: Sequence[Metric]) -> tuple[Metric, ...]:
    """Pure: the metrics that are sums of a fixed width, so that they can travel with every gradient."""
    return tuple(metric for metric in metrics if metric.num_sums is not None)


@dataclass(frozen=True)
class TrainMetrics:
    """Computes the metrics of a training step as one vector of sums."""

    metrics: Sequence[Metric]

    @property
    def num_sums(self) -> int:
        """Number of sums that all metrics together need."""
        return sum(metric.num_sums or 0 for metric in self.metrics)

    def __call__(self, outputs: Any, targets: Any, weights: Any) -> Tensor | Sequence[float]:
        with torch.no_grad():
            if len(self.metrics) == 1:
                (only,) = self.metrics
                return only.quick_sums(outputs, targets, weights) or only.sums(outputs, targets, weights)
            quick = [metric.quick_sums(outputs, targets, weights) for metric in self.metrics]
            if all(one is not None for one in quick):
                return [number for one in quick if one is not None for number in one]
            return torch.cat([metric.sums(outputs, targets, weights) for metric in self.metrics])

"""Metrics of Keras: their sums are added up over batches and workers, and Keras computes the value from the total."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unisono.errors import UsageError
from unisono.metrics.base import Metric, Sums, ratio
from unisono.model.keras.pure import Pure, metric_starts
from unisono.task.metric_names import direction_of

MOST_STEP_SUMS = 4096
"""A metric with more sums than this (a large confusion matrix) is computed in evaluations only, not in every training step."""
COUNTS: Mapping[str, str] = MappingProxyType(
    {"TruePositives": "up", "TrueNegatives": "up", "FalsePositives": "down", "FalseNegatives": "down"}
)
"""Metrics of Keras of which it does not say itself whether higher is better."""


class KerasMetric(Metric):
    """One metric of a compiled model. Its sums are computed with the loss of the batch."""

    def __init__(self, pure: Pure, metric: Any, name: str, start: int, is_beside: bool) -> None:
        self.pure = pure
        self.metric = metric
        self.name = name
        self.is_beside = is_beside
        """Whether nobody asked for it in `compile`, so that it judges no epoch unless it is named."""
        self._starts = metric_starts([metric])
        self._where = slice(start, start + sum(prod(variable.shape) for variable in metric.variables))
        self.num_sums = width if (width := self._where.stop - start) <= MOST_STEP_SUMS else None
        self.higher_is_better = _direction(metric, name)

    def sums(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> Tensor:  # noqa: ARG002
        return torch.as_tensor(self.pure.remembered(outputs)[self._where], dtype=torch.float64)

    def quick_sums(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> tuple[float, ...] | None:  # noqa: ARG002
        found = self.pure.remembered(outputs)[self._where]
        if isinstance(found, Tensor):
            return None if found.is_cuda else tuple(found.tolist())
        return tuple(found)

    def value(self, sums: Sums) -> float:
        if not len(sums):
            return float("nan")
        from keras import StatelessScope, metrics, ops

        if type(self.metric).result is metrics.Mean.result:  # most are means, and reported with every step
            return ratio(*sums)
        cut = np.split(sums, np.cumsum([prod(variable.shape) for variable in self.metric.variables])[:-1])
        totals = [start + part.reshape(start.shape) for start, part in zip(self._starts, cut, strict=True)]
        pairs = zip(self.metric.variables, totals, strict=True)
        with StatelessScope([(variable, total.astype(variable.dtype)) for variable, total in pairs]):
            found = ops.convert_to_numpy(self.metric.result())
        if found.size != 1:  # F1Score has an axis of classes, also with a single output
            raise UsageError(
                f"{self.label} returns {found.size} numbers, but epochs are compared by one number; average them (average='macro')"
            )
        return float(found.item())

    def refuse_several(self) -> None:
        """Local: refuses a metric that returns several numbers, before any sample is counted."""
        with suppress(ArithmeticError, ValueError):  # of one that has no value then
            self.value(np.zeros(self._where.stop - self._where.start))


def _direction(metric: Any, name: str) -> bool | None:
    """Pure: whether higher is better, as Keras or the user's class or function says it, else by the name."""
    kept = getattr(metric, "_direction", None) or COUNTS.get(type(metric).__name__)
    if kept is not None and getattr(metric, "higher_is_better", None) is None:
        return bool(kept == "up")
    owner = metric if hasattr(metric, "higher_is_better") else getattr(metric, "_fn", None)
    return direction_of(owner, name)


def keras_metrics(pure: Pure) -> Sequence[KerasMetric]:
    """Local: returns the metrics of a compiled model, once they are built; refuses those that return several numbers."""
    found, start = list[KerasMetric](), 0
    for number, (name, metric) in enumerate(pure.metrics):
        found.append(KerasMetric(pure, metric, name, start, number >= pure.num_compiled))
        found[-1].refuse_several()
        start += sum(prod(variable.shape) for variable in metric.variables)
    return found

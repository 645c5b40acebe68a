"""Confidence intervals of 95 % of measured values, from the samples on which they were measured. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unisono.metrics.base import GatheredMetric, Metric

Z_95 = 1.959963984540054
NUM_RESAMPLES = 1000
SEED = 20
"""Seed of the resamples, so that the same predictions give the same interval."""


def wilson(num_hits: int, total: int) -> tuple[float, float]:
    """The interval of a share of hits (Wilson 1927): (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)."""
    share, square = num_hits / total, Z_95**2
    middle = share + square / (2 * total)
    half = Z_95 * math.sqrt(share * (1 - share) / total + square / (4 * total**2))
    scale = 1 + square / total
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def spread(values: Sequence[float]) -> float:
    """The standard deviation of a sample."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


@dataclass(frozen=True)
class Predictions:
    """Outputs beside targets, one row for each sample, as an evaluation keeps them."""

    outputs: Tensor
    targets: Tensor
    weights: Tensor | None

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> Predictions:
        """Makes predictions from saved arrays."""
        weights = torch.from_numpy(arrays["weights"]) if "weights" in arrays else None
        return cls(torch.from_numpy(arrays["outputs"]), torch.from_numpy(arrays["targets"]), weights)

    def value(self, metric: Metric, counts: Tensor) -> float:
        """The metric of a resample that holds each sample so many times: metrics count a sample by its weight."""
        weights = counts if self.weights is None else counts * self.weights
        read = metric.rows if isinstance(metric, GatheredMetric) else metric.sums
        return metric.value(read(self.outputs, self.targets, weights).numpy())


def paired_bootstrap(metric: Metric, one: Predictions, other: Predictions) -> tuple[float, float]:
    """The interval (percentiles) of metric(one) - metric(other), both measured on the same resamples of the same samples."""
    count = len(one.targets)
    random = np.random.Generator(np.random.Philox(SEED))
    found = []
    for _ in range(NUM_RESAMPLES):
        counts = torch.from_numpy(np.bincount(random.integers(count, size=count), minlength=count).astype(np.float64))
        found.append(one.value(metric, counts) - other.value(metric, counts))
    low, high = np.nanpercentile(found, [2.5, 97.5])
    return float(low), float(high)

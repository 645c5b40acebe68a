"""HOW GOOD: metrics that are exact over any number of workers, as sums that are added or scores in sample order.

Imported by predict and training; imports comm, data, model and task.
"""

from __future__ import annotations

from unisono.metrics.accumulate import Accumulator
from unisono.metrics.base import GatheredMetric, Metric
from unisono.metrics.find_metrics import resolve_metrics

__all__ = ["Accumulator", "GatheredMetric", "Metric", "resolve_metrics"]

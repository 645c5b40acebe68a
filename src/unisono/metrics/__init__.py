"""Metrics that are exact over any number of workers: sums that are added, or scores that are gathered in sample order.

Imported by training and all above; imports model and data.
"""

from __future__ import annotations

from unisono.metrics.accumulate import Accumulator
from unisono.metrics.base import GatheredMetric, Metric
from unisono.metrics.find_metrics import resolve_metrics

__all__ = ["Accumulator", "GatheredMetric", "Metric", "resolve_metrics"]

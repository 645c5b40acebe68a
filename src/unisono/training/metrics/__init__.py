"""Metrics that are exact over any number of workers: sums that are added, or scores that are gathered in sample order."""

from __future__ import annotations

from unisono.training.metrics.accumulate import Accumulator
from unisono.training.metrics.base import GatheredMetric, Metric
from unisono.training.metrics.resolve import resolve_metrics

__all__ = ["Accumulator", "GatheredMetric", "Metric", "resolve_metrics"]

"""Intervals against other implementations, and resamples against samples that are really repeated."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unisono.metrics import GatheredMetric, resolve_metrics
from unisono.predict.intervals import Predictions, paired_bootstrap, spread, wilson


@pytest.mark.parametrize(("hits", "total"), [(0, 10), (10, 10), (352, 359), (1, 2), (9931, 10000)])
def test_wilson_is_that_of_scipy(hits: int, total: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(hits, total).proportion_ci(method="wilson")
    assert wilson(hits, total) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_spread_is_that_of_a_sample() -> None:
    assert spread([1.0, 2.0, 4.0]) == pytest.approx(np.std([1.0, 2.0, 4.0], ddof=1))


def made(seed: int, sharpness: float) -> Predictions:
    random = np.random.default_rng(0)
    targets = random.integers(3, size=101)
    outputs = sharpness * np.eye(3)[targets] + np.random.default_rng(seed).normal(size=(101, 3))
    return Predictions.of({"outputs": outputs.astype(np.float32), "targets": targets})


@pytest.mark.parametrize("name", ["accuracy", "f1", "auc", "kappa", "top_2_accuracy"])
def test_a_weighted_sample_counts_as_a_repeated_one(name: str) -> None:
    (metric,) = resolve_metrics([name])
    predictions = made(1, 1.0)
    counts = np.bincount(np.random.default_rng(2).integers(101, size=101), minlength=101)
    repeated = np.repeat(np.arange(101), counts)
    read = metric.rows if isinstance(metric, GatheredMetric) else metric.sums
    expected = metric.value(read(predictions.outputs[repeated], predictions.targets[repeated]).numpy())
    assert predictions.value(metric, torch.from_numpy(counts.astype(np.float64))) == pytest.approx(expected, abs=1e-12)


def test_the_difference_of_a_run_to_itself_is_nothing_and_to_a_worse_one_is_seen() -> None:
    (metric,) = resolve_metrics(["accuracy"])
    good, bad = made(1, 4.0), made(2, 0.5)
    assert paired_bootstrap(metric, good, good) == (0.0, 0.0)
    low, high = paired_bootstrap(metric, bad, good)
    everyone = torch.ones(101, dtype=torch.float64)
    assert low < bad.value(metric, everyone) - good.value(metric, everyone) < high < 0
    assert paired_bootstrap(metric, bad, good) == (low, high)

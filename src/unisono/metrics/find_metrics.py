"""Finds the metrics that a task names: names and functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from unisono.errors import UsageError, unknown_name
from unisono.metrics.base import Metric
from unisono.metrics.counts import QUOTIENTS, BalancedAccuracy, ClassQuotient, Kappa
from unisono.metrics.custom_metric import custom_metric
from unisono.metrics.hits import Accuracy, TopAccuracy
from unisono.metrics.regression import Determination, MeanError, square_root
from unisono.metrics.scores import ScoreArea, average_precision, roc_area
from unisono.model.losses.base import LOGITS, Reading
from unisono.task.averages import AVERAGES, MACRO, OF_OUTPUTS, Averages

METRICS: Mapping[str, Callable[[Reading], Metric]] = MappingProxyType(
    {
        "accuracy": Accuracy,
        "top_5_accuracy": partial(TopAccuracy, 5),
        "balanced_accuracy": partial(BalancedAccuracy, "balanced_accuracy"),
        "kappa": partial(Kappa, "kappa"),
        **{name: partial(ClassQuotient, name, quotient, None) for name, quotient in QUOTIENTS.items()},
        **{
            f"{name}_{average}": partial(ClassQuotient, f"{name}_{average}", quotient, average)
            for name, quotient in QUOTIENTS.items()
            for average in AVERAGES
        },
        "mean_iou": partial(ClassQuotient, "mean_iou", QUOTIENTS["iou"], MACRO),
        "auc": partial(ScoreArea, "auc", roc_area),
        "average_precision": partial(ScoreArea, "average_precision", average_precision),
        "mse": lambda _: MeanError("mse", torch.square),
        "rmse": lambda _: MeanError("rmse", torch.square, square_root),
        "mae": lambda _: MeanError("mae", torch.abs),
        "r2": lambda _: Determination(),
    }
)
"""Name -> file and class. top_K_accuracy is one too, for every K."""

OF_LOGITS = Reading(predicts=LOGITS, one_hot=False)
TOP = re.compile(r"top_([1-9][0-9]*)_accuracy")


def resolve_metrics(
    metrics: Iterable[str | Callable[..., Any]], reading: Reading = OF_LOGITS, averages: Averages = OF_OUTPUTS
) -> tuple[Metric, ...]:
    """Pure: returns metrics by name or function, in this order. `reading` is that of the loss, so that loss and metrics read
    outputs and targets alike; `averages` are those of a run that began earlier."""
    found = tuple(_find_metric(metric, reading, averages) for metric in metrics)
    names = [metric.name for metric in found]
    for name in names:
        if name == "loss":
            raise UsageError(
                "a metric is called 'loss' (metrics of the task), but so is the loss, which is always shown; leave it out, or give "
                "the function another name"
            )
        if names.count(name) > 1:
            raise UsageError(
                f"two metrics are called {name!r} (metrics of the task); give each once, or set the attribute `name` of a function"
            )
    return found


def _find_metric(metric: str | Callable[..., Any], reading: Reading, averages: Averages) -> Metric:
    """Returns the metric of this name, or made of this function; refuses unknown names."""
    if isinstance(metric, str):
        if metric in QUOTIENTS:
            return ClassQuotient(metric, QUOTIENTS[metric], averages.get(metric), reading)
        if metric in METRICS:
            return METRICS[metric](reading)
        top = TOP.fullmatch(metric)
        if top:
            return TopAccuracy(int(top[1]), reading)
        raise unknown_name("metric", metric, METRICS)
    if callable(metric):
        return custom_metric(metric)
    raise UsageError(f"a metric must be a name or a function of (outputs, targets); received {metric!r} (metrics of the task)")

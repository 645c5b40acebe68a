"""Refuses metrics that do not fit the loss or the targets: they would be computed, and mean nothing. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unisono.data.tree import leaves, map_tree
from unisono.errors import UsageError
from unisono.metrics.base import DECISIONS, VALUES, Metric
from unisono.metrics.custom_metric import CustomMean
from unisono.model.losses.base import BORDERS, LOGARITHMS, LOGITS, NUMBERS, Reading
from unisono.model.losses.custom_loss import CustomLoss

OWN = "or write a function of (outputs, targets) as the metric"
UNFIT: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        (DECISIONS, NUMBERS): f"decides for a class, but {{owner}} fits numbers; use mse, rmse, mae or r2, {OWN}",
        (DECISIONS, LOGARITHMS): f"decides for a class, but {{owner}} fits numbers; {OWN.removeprefix('or ')}",
        (VALUES, LOGITS): "compares outputs with targets as numbers, but the outputs for {owner} are scores of classes "
        f"(logits); use accuracy, f1 or auc, {OWN}",
        (VALUES, LOGARITHMS): "compares outputs with targets as numbers, but the outputs for {owner} are their logarithms; "
        f"set log_input to False (loss_options), {OWN}",
    }
)
"""What a metric needs and what the outputs are -> why both together are refused."""


def refuse_unfit(metrics: Sequence[Metric], reading: Reading) -> None:
    """Refuses metrics that read outputs otherwise than the loss."""
    for metric in metrics:
        why = UNFIT.get((metric.needs or "", reading.predicts or ""))
        if why is not None:
            raise UsageError(f"{metric.label} {why.format(owner=reading.owner)} (metrics of the task)")


def refuse_batch_means(function: CustomLoss | CustomMean, outputs: Any, targets: Any, weights: Tensor | None) -> None:
    """Refuses a user's function that returns as many values for the first sample as for the first two: they are means over the
    samples, of which another axis is kept. Says nothing where two samples cannot be cut into one: the first axis of the outputs may
    be another, e.g. the time, and a function may need several samples."""
    if not all(isinstance(leaf, Tensor) and leaf.shape[:1] in ((), (2,)) for _, leaf in leaves((outputs, targets))):
        return
    counts = []
    for num in (1, 2):
        first = partial(map_tree, lambda leaf: leaf[:num] if leaf.dim() else leaf)  # noqa: B023 - it is called here
        try:
            found = function.values(first(outputs), first(targets), None if weights is None else weights[:num])
        except Exception:  # noqa: BLE001 - whatever a user's function raises for what it never gets in a training
            return
        counts.append(None if isinstance(found, tuple) else torch.as_tensor(found).numel())
    if counts[0] is not None and counts[0] == counts[1]:
        raise UsageError(
            f"{function.label} returned {counts[0]} values for one sample and for two, so they are means over the samples, and "
            'means of single workers cannot be combined exactly; return one value for each sample (reduction="none") or the pair '
            "(sum, weight)"
        )


def refuse_targets(metrics: Sequence[Metric], reading: Reading, outputs: Any, targets: npt.NDArray[Any]) -> None:
    """Refuses targets that are neither classes nor labels where a metric needs these. `outputs` may be of fewer samples; only where
    a loss reads outputs as classes may labels be shares between 0 and 1."""
    metric = next((one for one in metrics if one.reading is not None), None)
    if metric is None or not isinstance(outputs, Tensor) or not targets.size:
        return
    num = outputs.shape[-1 if reading.channels_last else 1] if outputs.dim() > 1 else 1
    are_numbers = outputs.dim() == targets.ndim + 1 or (reading.channels_last and targets.shape[-1] == 1)
    if num > 1 and are_numbers:
        most, rule = num - 1, f"classes are whole numbers in 0..{num - 1}, one for each output"
        shares = False
    elif num > 1 and reading.one_hot:
        return
    else:
        most, rule = 1, "labels are 0 or 1"
        shares = reading.predicts in BORDERS
    if targets.min() >= 0 and targets.max() <= most and (shares or not np.issubdtype(targets.dtype, np.inexact)):
        return
    is_wrong = ~((targets >= 0) & (targets <= most))
    if not shares:
        is_wrong |= targets != np.floor(targets)
    if reading.ignore_label is not None:
        is_wrong &= targets != reading.ignore_label
    if is_wrong.any():
        place = tuple(int(at[0]) for at in np.nonzero(is_wrong))
        raise UsageError(
            f"{metric.label} needs targets that are classes or labels, but sample {place[0]} has the target {targets[place]:g} "
            f"({rule}); use mse, rmse, mae or r2 for a regression, {OWN}"
        )

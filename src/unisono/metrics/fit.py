"""Refuses metrics that do not fit the loss or the targets: they would be computed, and mean nothing. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from unisono.errors import UsageError
from unisono.metrics.base import DECISIONS, VALUES, Metric
from unisono.model.losses.base import CLASSES, LOGARITHMS, NUMBERS, PROBABILITIES

OWN = "or write a function of (outputs, targets) as the metric"
UNFIT: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        (DECISIONS, NUMBERS): f"decides for a class, but the loss {{loss}} fits numbers; use mse, rmse, mae or r2, {OWN}",
        (DECISIONS, LOGARITHMS): f"decides for a class, but the loss {{loss}} fits numbers; {OWN.removeprefix('or ')}",
        (DECISIONS, PROBABILITIES): "decides by logits, of which 0 is the border, but the outputs for the loss {loss} are "
        f"probabilities; let the model return logits (loss='bce' for torch, from_logits=True for Keras), {OWN}",
        (VALUES, CLASSES): "compares outputs with targets as numbers, but the outputs for the loss {loss} are scores of classes "
        f"(logits); use accuracy, f1 or auc, {OWN}",
        (VALUES, LOGARITHMS): "compares outputs with targets as numbers, but the outputs for the loss {loss} are their logarithms; "
        f"set log_input to False (loss_options), {OWN}",
    }
)
"""What a metric needs and how the loss reads outputs -> why both together are refused."""


def refuse_unfit(metrics: Sequence[Metric], loss: str, predicts: str | None) -> None:
    """Refuses metrics that read outputs otherwise than the loss, which is called `loss` in messages."""
    for metric in metrics:
        why = UNFIT.get((metric.needs or "", predicts or ""))
        if why is not None:
            raise UsageError(f"{metric.label} {why.format(loss=loss)} (metrics of the task)")


def refuse_targets(metrics: Sequence[Metric], outputs: Any, targets: npt.NDArray[Any], predicts: str | None) -> None:
    """Refuses targets that are neither classes nor labels where a metric needs these. `outputs` may be of fewer samples; only where
    a loss reads outputs as classes may labels be shares between 0 and 1."""
    metric = next((one for one in metrics if one.reading is not None), None)  # all of them read alike
    if metric is None or metric.reading is None or not isinstance(outputs, Tensor) or not targets.size:
        return
    several = outputs.dim() > 1 and outputs.shape[1] > 1
    if several and outputs.dim() == targets.ndim + 1:
        most, rule = outputs.shape[1] - 1, f"classes are whole numbers in 0..{outputs.shape[1] - 1}, one for each output"
        shares = False
    elif several and metric.reading.one_hot:
        return
    else:
        most, rule = 1, "labels are 0 or 1"
        shares = predicts == CLASSES
    if targets.min() >= 0 and targets.max() <= most and (shares or not np.issubdtype(targets.dtype, np.inexact)):
        return
    is_wrong = ~((targets >= 0) & (targets <= most))
    if not shares:
        is_wrong |= targets != np.floor(targets)
    if metric.reading.ignore_label is not None:
        is_wrong &= targets != metric.reading.ignore_label
    if is_wrong.any():
        place = tuple(int(at[0]) for at in np.nonzero(is_wrong))
        raise UsageError(
            f"{metric.label} needs targets that are classes or labels, but sample {place[0]} has the target {targets[place]:g} "
            f"({rule}); use mse, rmse, mae or r2 for a regression, {OWN}"
        )

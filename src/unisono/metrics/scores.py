"""Metrics that need the order of all scores, which are gathered: areas under the ROC and the precision-recall curve.

A row is [weight, class, scores...] or, for labels that may hold together, [weight, NaN, scores..., truths...].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unisono.errors import UsageError
from unisono.metrics.base import SCORES, GatheredMetric, Sums
from unisono.metrics.decisions import aligned, is_classes
from unisono.model.losses.base import LOGITS, PROBABILITIES, Reading
from unisono.model.targets import across, as_labels, shaped_like

Column = npt.NDArray[np.float64]
Area = Callable[[Column, Column], float]
"""(positive, negative) weights in order of falling score, ties added up -> area."""


class ScoreArea(GatheredMetric):
    """The area under a curve for each class against the rest, averaged over the classes that have one."""

    needs = SCORES

    def __init__(self, name: str, area: Area, reading: Reading) -> None:
        self.name = name
        self.area = area
        self.reading: Reading = reading

    def rows(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
        outputs, targets = aligned(outputs, targets, self.reading, self.label)
        outputs = outputs.to(torch.float64)
        if is_classes(outputs, targets):
            return self._rows_of_classes(outputs, as_labels(outputs, targets, self.label), weights)
        return self._rows_of_labels(outputs, shaped_like(outputs, targets, self.label), weights)

    def _rows_of_classes(self, outputs: Tensor, truth: Tensor, weights: Tensor | None) -> Tensor:
        """Returns a row for each sample: its weight, its class, and its scores."""
        predicts, is_pair = self.reading.predicts, outputs.shape[1] == 2
        if predicts not in (LOGITS, PROBABILITIES) and not is_pair:
            raise UsageError(
                f"{self.label} orders samples by the probability of each class, but {self.reading.owner} does not say whether the "
                'outputs are probabilities or logits; set its attribute `predicts` to "logits" or "probabilities"'
            )
        if predicts == PROBABILITIES:
            scores = outputs[:, 1:] if is_pair else outputs
        else:  # of two classes the difference of logits orders samples as the probability does, but never saturates
            scores = outputs[:, 1:] - outputs[:, :1] if is_pair else torch.softmax(outputs, dim=1)
        return self._kept_rows(truth, scores.movedim(1, -1).flatten(0, -2), truth.flatten().unsqueeze(1), weights)

    def _rows_of_labels(self, outputs: Tensor, truth: Tensor, weights: Tensor | None) -> Tensor:
        """Returns a row for each sample: weight, NaN if there are several labels, scores, and true labels."""
        if outputs.dim() == 1:
            outputs, truth = outputs.unsqueeze(1), truth.unsqueeze(1)
        scores, truths = outputs.movedim(1, -1).flatten(0, -2), truth.movedim(1, -1).flatten(0, -2)
        if outputs.shape[1] == 1:
            return self._kept_rows(truth[:, 0], scores, truths, weights)
        several = torch.full_like(scores[:, :1], torch.nan)
        return torch.cat((self._importance(truth[:, 0], weights).flatten().unsqueeze(1), several, scores, truths), dim=1)

    def _kept_rows(self, truth: Tensor, scores: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """Returns rows of weight, label and scores, without those of the ignored label."""
        rows = torch.cat((self._importance(truth, weights).flatten().unsqueeze(1), labels, scores), dim=1)
        return rows if self.reading.ignore_label is None else rows[labels[:, 0] != self.reading.ignore_label]

    def _importance(self, truth: Tensor, weights: Tensor | None) -> Tensor:
        """Returns the weight of each target; 1 without sample weights."""
        ones = torch.ones(truth.shape, dtype=torch.float64, device=truth.device)
        return ones if weights is None else ones * across(weights, truth, self.label)

    def value(self, sums: Sums) -> float:
        if not len(sums):
            return float("nan")
        weights, labels, rest = sums[:, 0], sums[:, 1], sums[:, 2:]
        if np.isnan(rest).any():
            return float("nan")
        if np.isnan(labels[0]):
            scores, truths = np.hsplit(rest, 2)
            kept = np.ones_like(truths) if self.reading.ignore_label is None else truths != self.reading.ignore_label
            areas = [self._area_of_column(*columns) for columns in zip(scores.T, truths.T > 0.5, kept.T * weights, strict=True)]
        elif rest.shape[1] == 1:
            areas = [self._area_of_column(rest[:, 0], labels > 0.5, weights)]
        else:
            areas = [self._area_of_column(scores, labels == k, weights) for k, scores in enumerate(rest.T)]
        known = [area for area in areas if not np.isnan(area)]
        return float(np.mean(known)) if known else float("nan")

    def _area_of_column(self, scores: Column, truth: npt.NDArray[np.bool_], weights: Column) -> float:
        """Returns the area for one class, from its scores and which samples truly are of it; equal scores count as one."""
        order = np.argsort(-scores, kind="stable")
        scores, positive = scores[order], weights[order] * truth[order]
        starts = np.flatnonzero(np.r_[True, scores[1:] != scores[:-1]])
        everything = np.add.reduceat(weights[order], starts)
        positives = np.add.reduceat(positive, starts)
        return self.area(positives, everything - positives)


def roc_area(positives: Column, negatives: Column) -> float:
    """Pure: returns the probability that a positive scores higher than a negative, a tie counting half; NaN where one of them is
    missing."""
    pairs = positives.sum() * negatives.sum()
    if not pairs > 0:
        return float("nan")
    above = np.cumsum(positives) - positives
    return float((negatives * (above + positives / 2)).sum() / pairs)


def average_precision(positives: Column, negatives: Column) -> float:
    """Pure: returns the mean of the precision at each score, weighted by the growth of recall; NaN where there is no positive."""
    total = positives.sum()
    if not total > 0:
        return float("nan")
    found, taken = np.cumsum(positives), np.cumsum(positives + negatives)
    precision = np.divide(found, taken, out=np.zeros_like(found), where=taken > 0)
    return float((positives * precision).sum() / total)

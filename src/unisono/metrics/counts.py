"""Metrics made of three counts for each class: how often it was hit, predicted and true. Whole numbers, so any division into
batches and workers gives the same bits.

A class that is neither predicted nor true has no value and is left out of means, as in scikit-learn.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unisono.errors import UsageError
from unisono.metrics.base import DECISIONS, Metric, Sums, ratio
from unisono.metrics.decisions import Decisions, decisions_of
from unisono.model.losses.base import Reading
from unisono.task.averages import BINARY, MACRO, MICRO, WEIGHTED

Counts = npt.NDArray[np.float64]
Quotient = Callable[[Counts, Counts, Counts], tuple[Counts, Counts]]
"""(hit, predicted, true) counts -> numerator and denominator of each class."""

QUOTIENTS: Mapping[str, Quotient] = MappingProxyType(
    {
        "precision": lambda hit, predicted, _: (hit, predicted),
        "recall": lambda hit, _, true: (hit, true),
        "f1": lambda hit, predicted, true: (2 * hit, predicted + true),
        "dice": lambda hit, predicted, true: (2 * hit, predicted + true),
        "iou": lambda hit, predicted, true: (hit, predicted + true - hit),
    }
)
NUM_COUNTS = 3
"""Of each class: how often it was hit, predicted and true."""
MOST_COMPARED = 2**28
"""Targets times classes that are compared at once, a byte each."""


class ClassCounts(Metric):
    """Base of metrics of the counts of each class; the subclass computes the value from them."""

    needs = DECISIONS
    exclusive = False
    """Whether labels that may hold together are refused."""

    def __init__(self, name: str, reading: Reading) -> None:
        self.name = name
        self.reading: Reading = reading

    def sums(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
        decided = self._decide(outputs, targets, weights)
        counts = _counts_of_labels(decided) if decided.multi_label else _counts_of_classes(decided, self.label)
        return self._kept(counts, decided)

    def recordable_sums(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> Tensor | None:
        decided = self._decide(outputs, targets, weights)
        if decided.multi_label:
            return self._kept(_counts_of_labels(decided), decided)
        if weights is not None or decided.truth.numel() * decided.num_classes > MOST_COMPARED:
            return None
        return self._kept(_counts_by_comparison(decided), decided)

    def value(self, sums: Sums) -> float:
        hit, predicted, true = sums.reshape(NUM_COUNTS, -1)
        if np.isneginf(true).any():
            raise UsageError(
                f"{self.label}: some targets are not in 0..{len(true) - 1} but the model has {len(true)} classes; "
                "number the classes from 0"
            )
        return self._value(hit, predicted, true) if sums.any() else float("nan")

    def _decide(self, outputs: Any, targets: Any, weights: Tensor | None) -> Decisions:
        """Returns the decisions of a batch; refuses labels that may hold together where the metric needs classes."""
        decided = decisions_of(outputs, targets, weights, self.reading, self.label)
        if self.exclusive and decided.multi_label:
            raise UsageError(
                f"{self.label} needs one class for each sample, but these targets have several labels; use e.g. f1_macro"
            )
        return decided

    def _kept(self, counts: Tensor, decided: Decisions) -> Tensor:  # noqa: ARG002
        """Returns those of the counts, three of each class or label one behind the other, that are added up."""
        return counts

    @abstractmethod
    def _value(self, hit: Counts, predicted: Counts, true: Counts) -> float:
        """Returns the metric from three counts for each class: samples hit, predicted as it, and truly of it."""


def _counts_of_classes(decided: Decisions, label: str) -> Tensor:
    """Returns for each class the weight of samples that hit it, are predicted as it, and are truly of it, one behind the other."""
    predicted, truth = decided.predicted.flatten(), decided.truth.flatten()
    counted = None if decided.importance is None else decided.importance.flatten()
    if counted is not None:  # an ignored label need not be the number of a class
        kept = counted != 0
        predicted, truth, counted = predicted[kept], truth[kept], counted[kept]
    if truth.numel() and not 0 <= int(truth.min()) <= int(truth.max()) < decided.num_classes:
        raise UsageError(
            f"{label}: targets go from {int(truth.min())} to {int(truth.max())} but the model has {decided.num_classes} classes; "
            "number the classes from 0"
        )
    hits = predicted == truth

    def count(classes: Tensor, weights: Tensor | None) -> Tensor:
        return torch.bincount(classes, weights=weights, minlength=decided.num_classes).to(torch.float64)

    hit = count(truth[hits], None if counted is None else counted[hits])
    return torch.cat((hit, count(predicted, counted), count(truth, counted)))


def _counts_by_comparison(decided: Decisions) -> Tensor:
    """Returns what `_counts_of_classes` does where no sample has a weight, without a wait for the device: as the host does not see
    the targets, all counts are -inf where one of them is no class."""
    predicted, truth, num_classes = decided.predicted.flatten(), decided.truth.flatten(), decided.num_classes
    is_wrong = (truth < 0) | (truth >= num_classes)
    if decided.importance is not None:
        is_ignored = decided.importance.flatten() == 0
        is_wrong = is_wrong & ~is_ignored
        predicted = predicted.masked_fill(is_ignored, num_classes)
        truth = truth.masked_fill(is_ignored, num_classes)
    classes = torch.arange(num_classes, device=truth.device)
    is_predicted, is_true = predicted.unsqueeze(1) == classes, truth.unsqueeze(1) == classes
    counts = torch.cat([which.sum(0, dtype=torch.float64) for which in (is_predicted & is_true, is_predicted, is_true)])
    return counts.masked_fill(is_wrong.any(), -torch.inf)


def _counts_of_labels(decided: Decisions) -> Tensor:
    """Returns for each label the weight where it is rightly predicted, predicted, and true, one behind the other."""
    others = [axis for axis in range(decided.truth.dim()) if axis != 1]
    predicted, truth = decided.predicted, decided.truth
    parts = torch.stack((predicted * truth, predicted, truth))
    if decided.importance is not None:
        parts = parts * decided.importance
    return parts.sum(dim=[axis + 1 for axis in others], dtype=torch.float64).flatten()


class ClassQuotient(ClassCounts):
    """Precision, recall, f1, dice or iou by an average. Without one (`average` None) the outputs decide: a model with one output is
    measured by the positive class, any other by the mean over its classes or labels."""

    def __init__(self, name: str, quotient: Quotient, average: str | None, reading: Reading) -> None:
        super().__init__(name, reading)
        self.quotient = quotient
        self.average = average
        self.exclusive = self.average == BINARY

    def average_of(self, sums: Tensor) -> str:
        """Pure: returns the average of samples with these sums; their number tells the outputs of the model."""
        return self.average or (BINARY if len(sums) == NUM_COUNTS else MACRO)

    def _kept(self, counts: Tensor, decided: Decisions) -> Tensor:
        return counts.view(NUM_COUNTS, 2)[:, 1] if decided.one_output and self.average in (None, BINARY) else counts

    def _value(self, hit: Counts, predicted: Counts, true: Counts) -> float:
        if self.average == BINARY and len(hit) > 1:
            if len(hit) != 2:
                raise UsageError(
                    f"{self.label} needs two classes, but there are {len(hit)}; use {self.name.replace('_binary', '')!r}"
                )
            hit, predicted, true = hit[1:], predicted[1:], true[1:]
        top, bottom = self.quotient(hit, predicted, true)
        if self.average == MICRO:
            return ratio(top.sum(), bottom.sum())
        # 0 where a class occurs but the quotient is undefined, e.g. the precision of a class that was never predicted.
        values = np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
        weights = true if self.average == WEIGHTED else (predicted + true > 0).astype(np.float64)
        return ratio((values * weights).sum(), weights.sum())


class BalancedAccuracy(ClassCounts):
    """The mean over the true classes of their recall ("average accuracy" in remote sensing)."""

    exclusive = True

    def _value(self, hit: Counts, predicted: Counts, true: Counts) -> float:  # noqa: ARG002
        occurs = true > 0
        return float(np.mean(hit[occurs] / true[occurs]))


class Kappa(ClassCounts):
    """Cohen's: agreement beyond what chance would give, (p_o - p_e) / (1 - p_e)."""

    exclusive = True

    def _value(self, hit: Counts, predicted: Counts, true: Counts) -> float:
        total = true.sum()
        observed, expected = hit.sum() / total, (predicted * true).sum() / total**2
        return ratio(observed - expected, 1 - expected)

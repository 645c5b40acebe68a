"""Decisions of a model: the class or the labels that its outputs predict, beside the true ones. Pure; axis 1 is always the class or
the label.

| outputs           | targets               | meaning                                                       |
|-------------------|-----------------------|---------------------------------------------------------------|
| (n, classes, ...) | (n, ...) numbers      | one class at each place, by the largest output                |
| (n, classes, ...) | same shape, `one_hot` | the same; the largest target is the true class                |
| (n,), (n, 1, ...) | (n, ...) or same      | two classes, the positive where the output (a logit) is above 0 |
| (n, labels, ...)  | same shape            | labels that may hold together, each where its output is above 0 |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unisono.errors import UsageError
from unisono.model.targets import across, as_labels, one_tensor, shaped_like
from unisono.task.averages import Averages


@dataclass(frozen=True)
class Reading:
    """The conventions by which a metric reads outputs and targets."""

    ignore_label: int | None = None
    one_hot: bool = False
    averages: Averages = field(default_factory=dict)

    def importance(self, truth: Tensor, weights: Tensor | None, label: str) -> Tensor | None:
        """Returns the weight of each element of `truth`, in its shape; None where all weigh 1."""
        valid = None if self.ignore_label is None else truth != self.ignore_label
        if weights is None:
            return None if valid is None else valid.to(torch.float64)
        wide = across(weights.to(torch.float64), truth, label)
        return wide.expand(truth.shape) if valid is None else wide * valid


@dataclass(frozen=True)
class Decisions:
    """Predicted and true classes or labels, in one shape."""

    predicted: Tensor
    truth: Tensor
    importance: Tensor | None
    """Weight of each element, 0 where ignored; None: 1 each."""
    num_classes: int
    multi_label: bool = False
    """Whether labels may hold together: `predicted` and `truth` are then 0 or 1, and axis 1 is the label."""
    one_output: bool = False
    """Whether the model has one output, which stands for the positive class of two."""


def is_classes(outputs: Any, targets: Any) -> bool:
    """Whether targets are class numbers of several classes."""
    return (
        isinstance(outputs, Tensor) and isinstance(targets, Tensor) and outputs.dim() == targets.dim() + 1 and outputs.shape[1] > 1
    )


def decisions_of(outputs: Any, targets: Any, weights: Tensor | None, reading: Reading, label: str) -> Decisions:
    """Returns the predicted and the true classes of a batch, or its labels if several may hold together, with the weight of each.
    Refuses outputs and targets that do not fit each other."""
    outputs = one_tensor("outputs", outputs, label).detach()
    targets = one_tensor("targets", targets, label)
    if is_classes(outputs, targets):
        truth = as_labels(outputs, targets, label)
        return Decisions(outputs.argmax(1), truth, reading.importance(truth, weights, label), outputs.shape[1])
    targets = shaped_like(outputs, targets, label)
    several = outputs.dim() > 1 and outputs.shape[1] > 1
    if several and reading.one_hot:
        truth = targets.argmax(1)
        if reading.ignore_label is not None:
            raise UsageError(f"{label}: ignore_label needs targets that are class numbers; these are one-hot rows")
        return Decisions(outputs.argmax(1), truth, reading.importance(truth, weights, label), outputs.shape[1])
    counted = reading.importance(targets, weights, label)
    num_classes = outputs.shape[1] if several else 2
    return Decisions((outputs > 0).long(), (targets > 0.5).long(), counted, num_classes, several, not several)

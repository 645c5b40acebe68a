"""Soft dice: how little the predicted regions of a sample overlap with the true ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unisono.errors import UsageError
from unisono.model.losses.base import LOGITS, Loss, Weight, total
from unisono.model.targets import across, as_labels, full_precision, one_tensor, shaped_like


@dataclass(eq=False, kw_only=True)
class Dice(Loss):
    """Soft dice loss: for each sample, 1 - mean over classes of (2 sum p t + smooth) / (sum p + sum t + smooth), sums over its
    places.

    Targets that are numbers of classes (samples, places...) go with a softmax over axis 1 of the outputs; targets of the shape
    of the outputs, or outputs with one class, with a sigmoid."""

    smooth: float = 1.0
    ignore_label: int | None = None

    name = "dice"
    predicts = LOGITS

    def __post_init__(self) -> None:
        if self.smooth < 0:
            raise UsageError(f"smooth must be at least 0 (options of the loss); received {self.smooth}")

    def __call__(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> tuple[Tensor, Weight]:
        outputs = full_precision(one_tensor("outputs", outputs, self.label))
        targets = one_tensor("targets", targets, self.label)
        if outputs.dim() < 2:
            raise UsageError(f"{self.label} needs outputs (samples, classes, places...); received {tuple(outputs.shape)}")
        if targets.dim() == outputs.dim() or outputs.shape[1] == 1:
            truth = shaped_like(outputs, targets, self.label)
            counted = None if self.ignore_label is None else truth != self.ignore_label
            shares = torch.sigmoid(outputs)
        else:
            labels = as_labels(outputs, targets, self.label)
            counted = None if self.ignore_label is None else (labels != self.ignore_label).unsqueeze(1)
            known = labels if counted is None else labels * counted.squeeze(1)
            truth = functional.one_hot(known, outputs.shape[1]).movedim(-1, 1)
            shares = torch.softmax(outputs, dim=1)
        truth = truth.to(outputs.dtype)
        if counted is not None:
            shares, truth = shares * counted, truth * counted
        shares, truth = shares.unsqueeze(-1).flatten(2), truth.unsqueeze(-1).flatten(2)
        overlap = 2 * (shares * truth).sum(2) + self.smooth
        losses = 1 - (overlap / (shares.sum(2) + truth.sum(2) + self.smooth)).mean(1)
        return total(losses, None if weights is None else across(weights, losses, self.label))

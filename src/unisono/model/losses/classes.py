"""Losses of classes that exclude each other, with class weights and a label that is ignored.

    mean = sum_i w[y_i] loss_i / sum_i w[y_i]      over the targets that are not ignored, as torch's reduction="mean"

Outputs are (samples, classes, ...), targets (samples, ...).
"""

from __future__ import annotations

import reprlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unisono.errors import UsageError
from unisono.model.losses.base import LOGITS, Loss, Weight, total
from unisono.model.targets import across, as_labels, full_precision, one_tensor

NO_LABEL = torch.iinfo(torch.int64).min
"""Passed to torch, which would otherwise ignore the label -100."""


@dataclass(eq=False, kw_only=True)
class ClassLoss(Loss):
    """Base of losses of labels: adds up sums and weights; the subclass says what the loss of a label is."""

    class_weights: Sequence[float] | None = None
    ignore_label: int | None = None

    predicts = LOGITS

    def __post_init__(self) -> None:
        self._weighing: Tensor | None = None
        if self.class_weights is not None:
            self._weighing = torch.as_tensor(self.class_weights, dtype=torch.float64).detach()
            if self._weighing.dim() != 1 or not bool(((self._weighing >= 0) & self._weighing.isfinite()).all()):
                raise UsageError(
                    "class_weights must be one number of at least 0 for each class (options of the loss); "
                    f"received {reprlib.repr(self.class_weights)}"
                )
        self._counts = self.ignore_label is not None or self._weighing is not None
        self._ignored = NO_LABEL if self.ignore_label is None else index(self.ignore_label)

    @abstractmethod
    def _losses(self, outputs: Tensor, labels: Tensor, class_weights: Tensor | None, reduction: str) -> Tensor:
        """Returns the losses of labels, 0 where ignored, by reduction "sum" or "none"."""

    def __call__(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> tuple[Tensor, Weight]:
        if weights is None and not self._counts and _are_plain(outputs, targets):  # the way of most steps, without further checks
            return self._losses(outputs, targets, None, "sum"), float(targets.numel())
        outputs = full_precision(one_tensor("outputs", outputs, self.label))
        targets = one_tensor("targets", targets, self.label)
        labels = as_labels(outputs, targets, self.label)
        if not self._counts and weights is None:
            return self._losses(outputs, labels, None, "sum"), float(labels.numel())
        weighing = self._class_weights(outputs)
        class_weights = None if weighing is None else weighing.to(outputs.dtype)
        importance = self._importance(labels, weighing)
        if weights is None:
            return self._losses(outputs, labels, class_weights, "sum"), importance.sum(dtype=torch.float64)
        weights = across(weights, labels, self.label)
        losses = self._losses(outputs, labels, class_weights, "none")
        return (losses * weights).sum(), (importance * weights).sum(dtype=torch.float64)

    def _class_weights(self, outputs: Tensor) -> Tensor | None:
        """Returns the weight of each class on the device of the outputs; None if the task gives none."""
        if self._weighing is None:
            return None
        if outputs.shape[1] != len(self._weighing):
            raise UsageError(
                f"class_weights has {len(self._weighing)} values for {outputs.shape[1]} classes (options of the loss); "
                "give one for each class"
            )
        if self._weighing.device != outputs.device:
            self._weighing = self._weighing.to(outputs.device)
        return self._weighing

    def _importance(self, labels: Tensor, weighing: Tensor | None) -> Tensor:
        """Returns what each label adds to the denominator, before sample weights."""
        counted = labels != self._ignored
        return counted if weighing is None else weighing[labels * counted] * counted


def _are_plain(outputs: Any, targets: Any) -> bool:
    """Returns whether outputs are float32 or float64 rows of logits and targets a class number for each row."""
    return (
        isinstance(outputs, Tensor)
        and isinstance(targets, Tensor)
        and targets.dtype is torch.int64
        and (outputs.dtype is torch.float32 or outputs.dtype is torch.float64)
        and outputs.dim() == 2
        and targets.dim() == 1
        and len(outputs) == len(targets)
    )


@dataclass(eq=False, kw_only=True)
class CrossEntropy(ClassLoss):
    """Cross entropy of logits. Targets may also be probabilities (or one-hot rows) in the shape of the outputs."""

    label_smoothing: float = 0.0

    name = "cross_entropy"
    one_hot = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.label_smoothing <= 1:
            raise UsageError(f"label_smoothing must lie in 0..1 (options of the loss); received {self.label_smoothing}")

    def _losses(self, outputs: Tensor, labels: Tensor, class_weights: Tensor | None, reduction: str) -> Tensor:
        return functional.cross_entropy(
            outputs,
            labels,
            weight=class_weights,
            ignore_index=self._ignored,
            reduction=reduction,
            label_smoothing=self.label_smoothing,
        )

    def __call__(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> tuple[Tensor, Weight]:
        one, other = one_tensor("outputs", outputs, self.label), one_tensor("targets", targets, self.label)
        if other.dim() == one.dim():
            return self._loss_of_probabilities(full_precision(one), other, weights)
        return super().__call__(one, other, weights)

    def _loss_of_probabilities(self, outputs: Tensor, targets: Tensor, weights: Tensor | None) -> tuple[Tensor, Weight]:
        """Returns loss sum and weight where targets are probabilities or one-hot rows."""
        if targets.shape != outputs.shape or outputs.dim() < 2:
            as_labels(outputs, targets, self.label)  # says what would fit
        if self.ignore_label is not None:
            raise UsageError("ignore_label needs targets that are class numbers; these are probabilities or one-hot rows")
        weighing = self._class_weights(outputs)
        losses = functional.cross_entropy(
            outputs,
            targets.to(outputs.dtype),
            weight=None if weighing is None else weighing.to(outputs.dtype),
            reduction="none",
            label_smoothing=self.label_smoothing,
        )
        return total(losses, None if weights is None else across(weights, losses, self.label))


@dataclass(eq=False, kw_only=True)
class NegativeLogLikelihood(ClassLoss):
    """Negative log likelihood of outputs that are logarithms of probabilities."""

    name = "nll"

    def _losses(self, outputs: Tensor, labels: Tensor, class_weights: Tensor | None, reduction: str) -> Tensor:
        return functional.nll_loss(outputs, labels, weight=class_weights, ignore_index=self._ignored, reduction=reduction)


@dataclass(eq=False, kw_only=True)
class Focal(ClassLoss):
    """Cross entropy times (1 - p)^gamma: samples that are already right count little (Lin et al. 2017, arXiv:1708.02002)."""

    gamma: float = 2.0

    name = "focal"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma < 0:
            raise UsageError(f"gamma must be at least 0 (options of the loss); received {self.gamma}")

    def _losses(self, outputs: Tensor, labels: Tensor, class_weights: Tensor | None, reduction: str) -> Tensor:
        log_p = functional.log_softmax(outputs, dim=1)
        plain = functional.nll_loss(log_p, labels, ignore_index=self._ignored, reduction="none")
        # The probability is that of the label, so class weights come in only after it.
        losses = plain * (1 - torch.exp(-plain)) ** self.gamma
        if class_weights is not None:
            losses = losses * class_weights[labels * (labels != self._ignored)]
        return losses.sum() if reduction == "sum" else losses

"""Losses of outputs and targets of one shape, element by element: regression, and labels that may hold together."""

from __future__ import annotations

import reprlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unisono.errors import UsageError
from unisono.model.losses.base import LOGARITHMS, LOGITS, NUMBERS, Loss, Weight, total
from unisono.model.targets import across, full_precision, one_tensor, shaped_like


class ElementLoss(Loss):
    """Base of losses of single elements: each counts once; targets are cast to the type of the outputs."""

    predicts = NUMBERS

    @abstractmethod
    def _losses(self, outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        """Returns the losses of the elements, by reduction "sum" or "none"."""

    def __call__(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> tuple[Tensor, Weight]:
        outputs = full_precision(one_tensor("outputs", outputs, self.label))
        targets = shaped_like(outputs, one_tensor("targets", targets, self.label), self.label).to(outputs.dtype)
        if weights is None:
            return self._losses(outputs, targets, "sum"), float(outputs.numel())
        return total(self._losses(outputs, targets, "none"), across(weights, outputs, self.label))


def _expect_above_zero(name: str, value: float) -> None:
    if not value > 0:
        raise UsageError(f"{name} must be above 0 (options of the loss); received {value}")


class SquaredError(ElementLoss):
    name = "mse"

    def _losses(self, outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        return functional.mse_loss(outputs, targets, reduction=reduction)


class AbsoluteError(ElementLoss):
    name = "mae"

    def _losses(self, outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        return functional.l1_loss(outputs, targets, reduction=reduction)


@dataclass(eq=False, kw_only=True)
class Huber(ElementLoss):
    """Huber loss: squared error up to `delta`, linear beyond."""

    delta: float = 1.0

    name = "huber"

    def __post_init__(self) -> None:
        _expect_above_zero("delta", self.delta)

    def _losses(self, outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        return functional.huber_loss(outputs, targets, reduction=reduction, delta=self.delta)


@dataclass(eq=False, kw_only=True)
class SmoothAbsoluteError(ElementLoss):
    """Smooth L1 loss: the Huber loss divided by `beta`."""

    beta: float = 1.0

    name = "smooth_l1"

    def __post_init__(self) -> None:
        _expect_above_zero("beta", self.beta)

    def _losses(self, outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        return functional.smooth_l1_loss(outputs, targets, reduction=reduction, beta=self.beta)


@dataclass(eq=False, kw_only=True)
class PoissonLikelihood(ElementLoss):
    """Negative log likelihood of counts; outputs are logarithms of rates unless `log_input` is false."""

    log_input: bool = True
    full: bool = False
    """Whether to add Stirling's approximation of what depends on the targets alone."""

    name = "poisson_nll"

    def __post_init__(self) -> None:
        self.predicts = LOGARITHMS if self.log_input else NUMBERS

    def _losses(self, outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        return functional.poisson_nll_loss(outputs, targets, log_input=self.log_input, full=self.full, reduction=reduction)


@dataclass(eq=False, kw_only=True)
class BinaryCrossEntropy(ElementLoss):
    """Binary cross entropy of logits; targets lie in 0..1. `pos_weight` multiplies the positive part: one number, or one for
    each label."""

    pos_weight: float | Sequence[float] | None = None

    name = "bce"
    predicts = LOGITS

    def __post_init__(self) -> None:
        self._positive: Tensor | None = None
        if self.pos_weight is not None:
            self._positive = torch.as_tensor(self.pos_weight, dtype=torch.float64).detach()
            if self._positive.dim() > 1 or not bool(((self._positive >= 0) & self._positive.isfinite()).all()):
                raise UsageError(
                    "pos_weight must be one number of at least 0, or one for each label (options of the loss); "
                    f"received {reprlib.repr(self.pos_weight)}"
                )

    def _losses(self, outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        positive = None if self._positive is None else self._pos_weight_like(outputs)
        return functional.binary_cross_entropy_with_logits(outputs, targets, pos_weight=positive, reduction=reduction)

    def _pos_weight_like(self, outputs: Tensor) -> Tensor:
        """Returns pos_weight in device and dtype of the outputs, shaped to be multiplied with them."""
        assert self._positive is not None
        if self._positive.device != outputs.device:
            self._positive = self._positive.to(outputs.device)
        wide = self._positive.to(outputs.dtype)
        if wide.numel() == 1:
            return wide
        if outputs.dim() < 2 or outputs.shape[1] != len(wide):
            raise UsageError(
                f"pos_weight has {len(wide)} values for outputs of shape {tuple(outputs.shape)} (options of the loss); "
                "give one number, or one for each label along axis 1"
            )
        return wide.reshape(-1, *(1,) * (outputs.dim() - 2))

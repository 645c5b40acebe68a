"""Metrics of numbers: sums of errors in float64, over samples and outputs alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unisono.metrics.base import VALUES, Metric, Sums, ratio
from unisono.model.targets import across, one_tensor, shaped_like


class MeanError(Metric):
    """The mean of an error over all elements, or a function of that mean."""

    higher_is_better = False
    needs = VALUES
    num_sums = 2

    def __init__(self, name: str, error: Callable[[Tensor], Tensor], finish: Callable[[float], float] = float) -> None:
        self.name = name
        self.error = error
        self.finish = finish

    def sums(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
        outputs = one_tensor("outputs", outputs, self.label).detach().to(torch.float64)
        targets = shaped_like(outputs, one_tensor("targets", targets, self.label), self.label)
        errors = self.error(outputs - targets)
        if weights is None:
            return torch.nn.functional.pad(errors.sum().view(1), (0, 1), value=float(errors.numel()))
        wide = across(weights.to(torch.float64), errors, self.label).expand(errors.shape)
        return torch.stack(((errors * wide).sum(), wide.sum()))

    def recordable_sums(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
        return self.sums(outputs, targets, weights)

    def value(self, sums: Sums) -> float:
        return self.finish(ratio(sums[0], sums[1]))


def square_root(mean: float) -> float:
    return math.sqrt(mean)


class Determination(Metric):
    """R2 of each output, averaged: 1 - sum of squared errors / sum of squared deviations from the mean.

    Sums of each output are [weight, y, y^2, error^2]; of 16 digits the deviations lose 2 log10(mean / deviation)."""

    name = "r2"
    needs = VALUES

    def sums(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
        outputs = one_tensor("outputs", outputs, self.label).detach().to(torch.float64)
        targets = shaped_like(outputs, one_tensor("targets", targets, self.label), self.label).to(torch.float64)
        errors = (outputs - targets).square()
        parts = torch.stack((torch.ones_like(targets), targets, targets.square(), errors))
        if weights is not None:
            parts = parts * across(weights.to(torch.float64), targets, self.label)
        return parts.sum(1).flatten()

    def recordable_sums(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> Tensor:
        return self.sums(outputs, targets, weights)

    def value(self, sums: Sums) -> float:
        weight, first, second, error = sums.reshape(4, -1)
        if not weight.any():
            return float("nan")
        spread = second - first**2 / weight
        # As scikit-learn: targets without spread are explained wholly (1) or not at all (0).
        constant = spread <= 1e-14 * second
        values = 1 - np.divide(error, spread, out=np.where(error > 0, 1.0, 0.0), where=~constant)
        return float(values.mean())

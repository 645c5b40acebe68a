"""The interface of losses: a sum and its weight. Their quotient over all workers is the mean that one worker would compute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

Weight = Tensor | float

CLASSES, NUMBERS, PROBABILITIES, LOGARITHMS = "classes", "numbers", "probabilities", "logarithms"
"""How a loss reads outputs: as scores of classes or labels (logits), as numbers like the targets, or as functions of these."""


class Loss(ABC):
    """Local, no host synchronisation: `loss(outputs, targets, weights)` = (sum of the losses, their weight).

    The weight is the denominator: samples, elements, pixels or class weights; a plain float where shapes alone say it. Sample
    weights multiply the loss and the weight of a sample."""

    name: str
    """Name that users type."""
    ignore_label: int | None = None
    """Targets with this label count neither in the sum nor in the weight."""
    predicts: str | None = None
    """How the loss reads outputs: CLASSES, NUMBERS, PROBABILITIES of labels, or LOGARITHMS of numbers; None where that is not
    known."""
    one_hot: bool = False
    """Whether targets of the shape of the outputs are probabilities of classes of which one holds, and not labels that may hold
    together."""

    @cached_property
    def label(self) -> str:
        """Text that names this loss in messages."""
        return f"loss {self.name!r}"

    @abstractmethod
    def __call__(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> tuple[Tensor, Weight]: ...


def total(losses: Tensor, weights: Tensor | None) -> tuple[Tensor, Weight]:
    """Pure: returns sum and weight of losses of equal importance, one for each element; `weights` as made by `across`."""
    if weights is None:
        return losses.sum(), float(losses.numel())
    each = losses.numel() // max(len(losses), 1)
    return (losses * weights).sum(), weights.sum(dtype=torch.float64) * each

"""Decisions of a model: the class or the labels that its outputs predict, beside the true ones. Pure; axis 1 is the class or the
label, or with `channels_last` (Keras) the last one.

| outputs           | targets               | meaning                                                            |
|-------------------|-----------------------|--------------------------------------------------------------------|
| (n, classes, ...) | (n, ...) numbers      | one class at each place, by the largest output                     |
| (n, classes, ...) | same shape, `one_hot` | the same; the largest target is the true class                     |
| (n,), (n, 1, ...) | (n, ...) or same      | two classes, the positive where the output is above the border     |
| (n, labels, ...)  | same shape            | labels that may hold together, each where its output is above that |

The border is 0 for logits and 0.5 for probabilities. What is not known of the outputs (`Reading`) and is needed is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unisono.errors import UsageError
from unisono.model.losses.base import BORDERS, Reading
from unisono.model.targets import across, as_labels, one_tensor, shaped_like


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


def aligned(outputs: Any, targets: Any, reading: Reading, label: str) -> tuple[Tensor, Tensor]:
    """Returns outputs and targets with the class or label on axis 1, and targets that are one-hot rows as class numbers."""
    outputs, targets = one_tensor("outputs", outputs, label).detach(), one_tensor("targets", targets, label)
    if reading.channels_last and outputs.dim() > 1:
        if targets.dim() == outputs.dim():  # Keras also takes class numbers with an axis of length 1
            is_numbers = targets.shape[-1] == 1 < outputs.shape[-1]
            targets = targets.squeeze(-1) if is_numbers else targets.movedim(-1, 1)
        outputs = outputs.movedim(-1, 1)
    if outputs.shape != targets.shape or outputs.dim() < 2 or outputs.shape[1] == 1 or reading.predicts not in (*BORDERS, None):
        return outputs, targets
    if reading.one_hot is None:
        raise UsageError(
            f"{label}: targets of the shape of the outputs, {tuple(targets.shape)}, are either one-hot classes or labels that may "
            f"hold together, and {reading.owner} does not say which; set its attribute `one_hot` to True or False"
        )
    if not reading.one_hot:
        return outputs, targets
    if reading.ignore_label is not None:
        raise UsageError(f"{label}: ignore_label needs targets that are class numbers; these are one-hot rows")
    return outputs, targets.argmax(1)


def decisions_of(outputs: Any, targets: Any, weights: Tensor | None, reading: Reading, label: str) -> Decisions:
    """Returns the predicted and the true classes of a batch, or its labels if several may hold together, with the weight of each.
    Refuses outputs and targets that do not fit each other, and outputs of which it is not known how to decide by them."""
    outputs, targets = aligned(outputs, targets, reading, label)
    if is_classes(outputs, targets):
        truth = as_labels(outputs, targets, label)
        return Decisions(outputs.argmax(1), truth, importance_of(truth, weights, reading, label), outputs.shape[1])
    targets = shaped_like(outputs, targets, label)
    several = outputs.dim() > 1 and outputs.shape[1] > 1
    border = BORDERS.get(reading.predicts or "")
    if border is None:
        raise UsageError(
            f"{label} decides by the border between two classes, 0 for logits and 0.5 for probabilities, but {reading.owner} does "
            'not say which of them the outputs are; set its attribute `predicts` to "logits" or "probabilities"'
        )
    counted = importance_of(targets, weights, reading, label)
    num_classes = outputs.shape[1] if several else 2
    return Decisions((outputs > border).long(), (targets > 0.5).long(), counted, num_classes, several, not several)


def importance_of(truth: Tensor, weights: Tensor | None, reading: Reading, label: str) -> Tensor | None:
    """Returns the weight of each element of `truth`, in its shape; None where all weigh 1."""
    valid = None if reading.ignore_label is None else truth != reading.ignore_label
    if weights is None:
        return None if valid is None else valid.to(torch.float64)
    wide = across(weights.to(torch.float64), truth, label)
    return wide.expand(truth.shape) if valid is None else wide * valid

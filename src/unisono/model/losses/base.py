"""The interface of losses: a sum and its weight. Their quotient over all workers is the mean that one worker would compute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from unisono.errors import UsageError, unknown_name

Weight = Tensor | float

LOGITS, PROBABILITIES, NUMBERS, LOGARITHMS = KINDS = ("logits", "probabilities", "numbers", "logarithms")
"""What outputs are: scores of classes or labels (also logarithms of their probabilities), these probabilities, numbers like the
targets, or logarithms of numbers."""
BORDERS: Mapping[str, float] = MappingProxyType({LOGITS: 0.0, PROBABILITIES: 0.5})
"""What outputs are -> the value above which a label counts as predicted."""


@dataclass(frozen=True)
class Reading:
    """What the outputs of a model are, and how targets go with them. A loss or a model says it, and every metric reads it."""

    owner: str = "the loss"
    """The loss or the model that says it, in messages."""
    predicts: str | None = None
    """One of `KINDS`; None where it is not known."""
    one_hot: bool | None = None
    """Whether targets of the shape of several outputs are classes of which one holds, and not labels that may hold together; None
    where it is not known."""
    ignore_label: int | None = None
    """Targets with this label do not count."""
    channels_last: bool = False
    """Whether the last axis of the outputs is the class or label, as in Keras, and not axis 1."""

    def said_by(self, owner: Any) -> Reading:
        """Pure: this reading with what the attributes `predicts` and `one_hot` of a user's function or model say; refuses another
        word."""
        predicts, one_hot = getattr(owner, "predicts", None), getattr(owner, "one_hot", None)
        if isinstance(predicts, str) and predicts not in KINDS:
            raise unknown_name("value", predicts, KINDS, f"of the attribute `predicts` of {self.owner}")
        if isinstance(one_hot, (int, float, str)) and not isinstance(one_hot, bool):
            raise UsageError(f"the attribute `one_hot` of {self.owner} must be True or False; received {one_hot!r}")
        return replace(
            self,
            predicts=predicts if isinstance(predicts, str) else self.predicts,
            one_hot=one_hot if isinstance(one_hot, bool) else self.one_hot,
        )


class Loss(ABC):
    """Local, no host synchronisation: `loss(outputs, targets, weights)` = (sum of the losses, their weight).

    The weight is the denominator: samples, elements, pixels or class weights; a plain float where shapes alone say it. Sample
    weights multiply the loss and the weight of a sample."""

    name: str
    """Name that users type."""
    ignore_label: int | None = None
    """Targets with this label count neither in the sum nor in the weight."""
    predicts: str | None = None
    one_hot: bool | None = False
    """As in a `Reading`."""

    @cached_property
    def label(self) -> str:
        """Text that names this loss in messages."""
        return f"loss {self.name!r}"

    @property
    def reading(self) -> Reading:
        """How the loss reads outputs and targets, for metrics."""
        return Reading(f"the loss {self.name!r}", self.predicts, self.one_hot, self.ignore_label)

    @abstractmethod
    def __call__(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> tuple[Tensor, Weight]: ...


def total(losses: Tensor, weights: Tensor | None) -> tuple[Tensor, Weight]:
    """Pure: returns sum and weight of losses of equal importance, one for each element; `weights` as made by `across`."""
    if weights is None:
        return losses.sum(), float(losses.numel())
    each = losses.numel() // max(len(losses), 1)
    return (losses * weights).sum(), weights.sum(dtype=torch.float64) * each

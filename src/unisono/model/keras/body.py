"""From a batch to a loss, as a compiled Keras model says it."""

from __future__ import annotations

from typing import Any

from torch import nn

from unisono.model.base import Evaluated
from unisono.model.keras.backends import Seen
from unisono.model.keras.module import KerasModule
from unisono.model.torch import LossBody, Outcome, in_three, num_rows


class KerasBody(LossBody):
    """Loss, loss weights, regularisers and added losses are those of the model; batch = (inputs, targets[, weights])."""

    def __init__(self) -> None:
        super().__init__(None)

    def __call__(self, model: nn.Module, batch: Any, step: int) -> Outcome:  # noqa: ARG002
        inputs, targets, weights = in_three(batch)
        seen = _keras(model).backend.learn(_keras(model), inputs, targets, weights)
        _keras(model).pure.remember(seen.outputs, seen.sums)
        return Outcome(seen.loss_sum, seen.weight, seen.outputs, targets, weights, num_rows(inputs))

    def evaluate(self, model: nn.Module, batch: Any) -> Evaluated:
        inputs, targets, weights = in_three(batch)
        seen: Seen = _keras(model).backend.look(_keras(model), inputs, targets, weights)
        _keras(model).pure.remember(seen.outputs, seen.sums)
        return Evaluated(seen.outputs, targets, weights, seen.loss_sum, seen.weight, num_rows(inputs))


def _keras(model: nn.Module) -> KerasModule:
    assert isinstance(model, KerasModule)
    return model

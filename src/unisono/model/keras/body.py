"""From a batch to a loss, as a compiled Keras model says it."""

from __future__ import annotations

from typing import Any

from torch import nn

from unisono.model.base import Evaluated
from unisono.model.keras.backends import Seen
from unisono.model.keras.module import KerasModule
from unisono.model.torch.body import LossBody, Outcome, in_three, num_rows


class KerasBody(LossBody):
    """Loss, loss weights, regularisers and added losses are those of the model; batch = (inputs, targets[, weights])."""

    def __init__(self, shows_outputs: bool = True) -> None:
        """Without outputs nobody but Keras's own metrics can judge a batch to learn from."""
        super().__init__(None)
        self._shows = shows_outputs

    def __call__(self, model: nn.Module, batch: Any, step: int) -> Outcome:  # noqa: ARG002
        inputs, targets, weights = in_three(batch)
        backend = _keras(model).backend
        seen = backend.learn(_keras(model), inputs, targets, weights)
        outputs = backend.shown(seen.outputs) if self._shows else seen.outputs
        _keras(model).pure.remember(outputs, seen.sums)
        return Outcome(seen.loss_sum, seen.weight, outputs, targets, weights, num_rows(inputs), seen.gradients)

    def evaluate(self, model: nn.Module, batch: Any) -> Evaluated:
        inputs, targets, weights = in_three(batch)
        backend = _keras(model).backend
        seen: Seen = backend.look(_keras(model), inputs, targets, weights)
        outputs = backend.shown(seen.outputs)
        _keras(model).pure.remember(outputs, seen.sums)
        return Evaluated(outputs, targets, weights, seen.loss_sum, seen.weight, num_rows(inputs))


def _keras(model: nn.Module) -> KerasModule:
    assert isinstance(model, KerasModule)
    return model

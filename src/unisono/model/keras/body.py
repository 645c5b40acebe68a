"""Computes the loss of a batch as a compiled Keras model defines it."""

from __future__ import annotations

from typing import Any

from torch import nn

from unisono.model.base import Evaluated
from unisono.model.keras.backends import BatchResult
from unisono.model.keras.module import KerasModule
from unisono.model.torch.body import LossBody, Outcome, num_rows, split_batch


class KerasBody(LossBody):
    """The body of a compiled Keras model. Loss, loss weights, regularisers and added losses are those of the model; batch =
    (inputs, targets[, weights])."""

    prepares = False
    host_code = "Keras computes the step"

    def __init__(self, shows_outputs: bool = True) -> None:
        """Without outputs nobody but Keras's own metrics can judge a batch to learn from."""
        super().__init__(None)
        self._shows = shows_outputs

    def __call__(self, model: nn.Module, batch: Any, step: int) -> Outcome:  # noqa: ARG002
        inputs, targets, weights = split_batch(batch)
        backend = _as_keras_module(model).backend
        result = backend.compute_gradients(_as_keras_module(model), inputs, targets, weights)
        outputs = backend.as_tensors(result.outputs) if self._shows else result.outputs
        _as_keras_module(model).pure.remember(outputs, result.sums)
        return Outcome(result.loss_sum, result.weight, outputs, targets, weights, num_rows(inputs), result.gradients)

    def evaluate(self, model: nn.Module, batch: Any) -> Evaluated:
        inputs, targets, weights = split_batch(batch)
        backend = _as_keras_module(model).backend
        result: BatchResult = backend.evaluate(_as_keras_module(model), inputs, targets, weights)
        outputs = backend.as_tensors(result.outputs)
        _as_keras_module(model).pure.remember(outputs, result.sums)
        return Evaluated(outputs, targets, weights, result.loss_sum, result.weight, num_rows(inputs))


def _as_keras_module(model: nn.Module) -> KerasModule:
    assert isinstance(model, KerasModule)
    return model

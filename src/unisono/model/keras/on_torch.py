"""Keras on PyTorch: it computes with the vectors themselves, and autograd goes back to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from unisono.model.keras.backends import Backend, BatchResult

if TYPE_CHECKING:
    from unisono.model.keras.module import KerasModule

outside_graph = nullcontext
"""There are no graphs here."""


def through_host(function: Callable[[list[Tensor]], list[Tensor]], values: Sequence[Any]) -> list[Any]:
    """Local but for what the function does: returns its results for these tensors."""
    return function([value.detach() for value in values])


class TorchBackend(Backend):
    """The backend PyTorch: nothing is compiled and nothing copied."""

    takes_cuda: ClassVar[bool] = True

    def value_of(self, variable: Any) -> Tensor:
        found: Tensor = variable.value.detach()
        return found

    def apply_model(self, module: KerasModule, inputs: Any) -> Any:
        with torch.no_grad(), _on(_device_of(module)):
            return self.pure.apply_model(module.trainable(), module.non_trainable(), _seed_tensors(module), inputs)

    def compute_gradients(self, module: KerasModule, inputs: Any, targets: Any, weights: Any) -> BatchResult:
        return self._compute_batch(module, inputs, targets, weights, training=True)

    def evaluate(self, module: KerasModule, inputs: Any, targets: Any, weights: Any) -> BatchResult:
        with torch.no_grad():
            return self._compute_batch(module, inputs, targets, weights, training=False)

    def update(
        self, optimizer: Any, values: Sequence[Tensor], gradients: Sequence[Tensor | None], memory: Sequence[Tensor]
    ) -> None:
        with torch.no_grad(), _on(values[0].device):
            after, learned = optimizer.stateless_apply(list(memory), list(gradients), list(values))
            for held, value in zip((*values, *memory), (*after, *learned), strict=True):
                if held is not value:  # some of Keras's optimisers work in place
                    held.copy_(value)

    def _compute_batch(self, module: KerasModule, inputs: Any, targets: Any, weights: Any, training: bool) -> BatchResult:
        """Computes outputs, loss and metric sums of a batch; `training` keeps autograd's graph and updates other values."""
        with _on(_device_of(module)):
            # A copy, as what is kept is written before autograd has gone back.
            kept = [one.clone() for one in module.non_trainable()] if training else module.non_trainable()
            found = self.pure.compute_batch(
                module.trainable(), kept, _seed_tensors(module), inputs, targets, weights, training=training
            )
        if training:
            module.update_non_trainable([one.detach() for one in found.non_trainable])
        sums = [one.detach().reshape(-1).double() for one in found.sums]
        return BatchResult(found.loss_sum, found.weight, found.outputs, torch.cat(sums) if sums else found.loss_sum.new_zeros(0))


def _seed_tensors(module: KerasModule) -> list[Tensor]:
    """Returns the state of each seed generator of the module."""
    return list(module.seeds().long()) if module.pure.seeds else []


def _device_of(module: KerasModule) -> torch.device:
    """Returns the device of the module's parameters and buffers; the CPU if it has none."""
    return next(chain(module.parameters(), module.buffers()), torch.zeros(())).device


def _on(where: torch.device) -> Any:
    """Returns a context in which Keras creates tensors on this device, which may not be the one that it prefers."""
    from keras import device

    return device(str(where))

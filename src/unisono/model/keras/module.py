"""A Keras model as a torch module: its weights are parameters and buffers by name, whichever backend computes with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unisono.model.keras.backends import Backend, on_host
from unisono.model.keras.packed_variables import ExistingVectors
from unisono.model.keras.pure import Pure


class KerasModule(nn.Module):
    """One replica of a Keras model, which is used as a pure function of the values that this holds; so copies of this share it."""

    def __init__(self, pure: Pure, backend: Backend) -> None:
        super().__init__()
        self.pure = pure
        self.backend = backend
        self.vectors_in_use: ExistingVectors | None = None
        """The vectors in which the trainable parameters were last found."""
        for variable in pure.trainable:
            self.register_parameter(pure.name(variable), nn.Parameter(backend.copy_of(variable)))
        for variable, is_frozen in zip(pure.non_trainable, pure.is_frozen, strict=True):
            value = backend.copy_of(variable)
            if is_frozen:
                self.register_parameter(pure.name(variable), nn.Parameter(value, requires_grad=False))
            else:
                self.register_buffer(pure.name(variable), value)

    def __deepcopy__(self, memo: dict[int, Any]) -> KerasModule:
        found = KerasModule(self.pure, self.backend)
        memo[id(self)] = found
        found.load_state_dict(self.state_dict())
        return found.to(next(self.parameters()).device).train(self.training)

    def trainable(self) -> list[nn.Parameter]:
        """Returns the trainable parameters, in the order of Keras."""
        return [self._parameters[self.pure.name(variable)] for variable in self.pure.trainable]  # type: ignore[misc]

    def non_trainable(self) -> list[Tensor]:
        """Returns all other values: statistics, counters, frozen weights."""
        names = map(self.pure.name, self.pure.non_trainable)
        return [found for name in names if (found := self._buffers.get(name, self._parameters.get(name))) is not None]

    def update_non_trainable(self, values: Sequence[Tensor]) -> None:
        """Local: stores the statistics and counters that a pass in training has computed; frozen weights are not among them."""
        with torch.no_grad():
            held = [one for one, is_frozen in zip(self.non_trainable(), self.pure.is_frozen, strict=True) if not is_frozen]
            for mine, value in zip(held, values, strict=True):
                mine.copy_(value)

    def seeds(self) -> Tensor:
        """Local: returns seeds for Keras's generators, drawn from torch's generator; so they are a function of its seed."""
        return torch.randint(2**31 - 1, (len(self.pure.seeds), 2), dtype=torch.int32)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Local: returns the outputs of the model in inference mode."""
        return self.backend.apply_model(self, named or (inputs[0] if len(inputs) == 1 else inputs))

    def publish(self) -> None:
        """Local: copies the values of this replica into the Keras model itself, for user code that reads or saves it."""
        values = [*self.backend.as_backend_arrays(self.trainable()), *map(on_host, self.non_trainable())]
        for variable, value in zip(self.pure.trainable + self.pure.non_trainable, values, strict=True):
            variable.assign(value)

    def model_differs(self) -> bool:
        """Local: whether the Keras model itself has other values."""
        pairs = zip(self.pure.trainable + self.pure.non_trainable, [*self.trainable(), *self.non_trainable()], strict=True)
        return any(not torch.equal(self.backend.value_of(variable).to(value.device), value) for variable, value in pairs)

    def absorb(self) -> None:
        """Local: copies the values of the Keras model itself, which user code has set, into this replica."""
        with torch.no_grad():
            for variable, value in zip(
                self.pure.trainable + self.pure.non_trainable, [*self.trainable(), *self.non_trainable()], strict=True
            ):
                value.copy_(self.backend.value_of(variable))

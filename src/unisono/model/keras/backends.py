"""What each backend of Keras offers a replica, and which of them is in use. All tensors here are torch's."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from unisono.errors import UsageError
from unisono.model.keras.pure import Pure
from unisono.model.torch.parameters import Gradients

if TYPE_CHECKING:
    from unisono.model.keras.module import KerasModule

BACKENDS: Mapping[str, str] = {"torch": "TorchBackend", "tensorflow": "TensorFlowBackend", "jax": "JaxBackend"}
"""Name in Keras -> class in `on_NAME.py`."""


class BatchResult(NamedTuple):
    """One batch."""

    loss_sum: Tensor | float
    weight: Tensor | float
    outputs: Any
    """In arrays of the backend; see `Backend.shown`."""
    sums: Tensor | Sequence[float]
    """What Keras's metrics count, one after the other; a tensor (float64) where they are on the device."""
    gradients: Gradients | None = None
    """None where autograd can go back from the loss."""


class Backend(ABC):
    """How a framework computes with the vectors of a replica. Local, blocking: everything is finished when a call returns."""

    takes_cuda: ClassVar[bool] = False
    """Whether the vectors may lie on a GPU."""

    def __init__(self, pure: Pure) -> None:
        self.pure = pure

    @abstractmethod
    def value_of(self, variable: Any) -> Tensor:
        """The value of a Keras variable, where it lies."""

    def copy_of(self, variable: Any) -> Tensor:
        """The value of a Keras variable, in memory of its own."""
        return self.value_of(variable).clone()

    def as_backend_arrays(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Of the variables that learn, or alike: arrays that Keras may keep, equal to them now."""
        return [on_host(tensor) for tensor in tensors]

    def as_tensors(self, outputs: Any) -> Any:
        """Outputs of `learn` and `look` as tensors."""
        return outputs

    @abstractmethod
    def apply_model(self, module: KerasModule, inputs: Any) -> Any:
        """What the model gives when it is applied."""

    @abstractmethod
    def compute_gradients(self, module: KerasModule, inputs: Any, targets: Any, weights: Any) -> BatchResult:
        """A batch to learn from; the module keeps what the pass makes of its statistics."""

    @abstractmethod
    def evaluate(self, module: KerasModule, inputs: Any, targets: Any, weights: Any) -> BatchResult:
        """A batch to look at."""

    @abstractmethod
    def update(
        self, optimizer: Any, values: Sequence[Tensor], gradients: Sequence[Tensor | None], memory: Sequence[Tensor]
    ) -> None:
        """One step of a Keras optimiser, in place: `memory` are its variables. Values without a gradient are left alone."""


def on_host(value: Tensor) -> Any:
    """Local: a copy for NumPy, which does not know bfloat16."""
    value = value.detach()
    return (value.float() if value.dtype is torch.bfloat16 else value).to("cpu", copy=True).numpy()


def prepare_backend() -> None:
    """Local, before the first model is made: what a framework must be told before it computes anything. Nothing is imported that
    the process has not imported already."""
    if "keras" in sys.modules:
        from keras import config

        if config.backend() == "jax":
            import_module("unisono.model.keras.on_jax").prepare()


def make_backend(pure: Pure) -> Backend:
    """Local: of the backend that Keras runs on in this process."""
    from keras import config

    name = config.backend()
    if name not in BACKENDS:
        raise UsageError(
            f"Keras runs on the backend {name!r}, which cannot train; set KERAS_BACKEND to one of {', '.join(BACKENDS)} before "
            "Python starts"
        )
    kind: type[Backend] = getattr(import_module(f"unisono.model.keras.on_{name}"), BACKENDS[name])
    return kind(pure)

"""The interface of Keras's backends, as a replica needs it, and the choice of the one in use. All tensors here are torch's."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
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
    """Loss, outputs and metric sums of one batch, and its gradients where the framework computed them."""

    loss_sum: Tensor | float
    weight: Tensor | float
    outputs: Any
    """Arrays of the backend; see `Backend.as_tensors`."""
    sums: Tensor | Sequence[float]
    """The sums of Keras's metrics, one after the other; a float64 tensor where they are on the device."""
    gradients: Gradients | None = None
    """None where autograd can compute them from the loss."""


class Backend(ABC):
    """The interface of a backend: computes with the vectors of a replica. Local, blocking: everything is finished when a call
    returns."""

    takes_cuda: ClassVar[bool] = False
    """Whether the vectors may be on a GPU."""

    def __init__(self, pure: Pure) -> None:
        self.pure = pure

    @abstractmethod
    def value_of(self, variable: Any) -> Tensor:
        """Returns the value of a Keras variable as a torch tensor in the same memory, which must not be written."""

    def copy_of(self, variable: Any) -> Tensor:
        """Returns a copy of the value of a Keras variable."""
        return self.value_of(variable).clone()

    def as_backend_arrays(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Returns copies of the trainable variables, or of tensors like them, as arrays that Keras may keep."""
        return [on_host(tensor) for tensor in tensors]

    def as_tensors(self, outputs: Any) -> Any:
        """Returns outputs of `compute_gradients` and `evaluate` as tensors."""
        return outputs

    @abstractmethod
    def apply_model(self, module: KerasModule, inputs: Any) -> Any:
        """Returns the outputs of the model in inference mode."""

    @abstractmethod
    def compute_gradients(self, module: KerasModule, inputs: Any, targets: Any, weights: Any) -> BatchResult:
        """Computes loss and gradients of a batch in training mode; the module keeps the new values of its statistics."""

    @abstractmethod
    def evaluate(self, module: KerasModule, inputs: Any, targets: Any, weights: Any) -> BatchResult:
        """Returns loss sum, weight, outputs and metric sums of a batch in inference mode; changes nothing."""

    @abstractmethod
    def update(
        self, optimizer: Any, values: Sequence[Tensor], gradients: Sequence[Tensor | None], memory: Sequence[Tensor]
    ) -> None:
        """Makes one step of a Keras optimiser, in place: `memory` are its variables. Values without a gradient are not changed."""


def on_host(value: Tensor) -> Any:
    """Local: returns a copy of a tensor as a NumPy array; bfloat16, which NumPy does not know, becomes float32."""
    value = value.detach()
    return (value.float() if value.dtype is torch.bfloat16 else value).to("cpu", copy=True).numpy()


def prepare_backend() -> None:
    """Local, before the first model is made: configures the framework as must be done before it computes anything. Nothing is
    imported that the process has not imported already."""
    if "keras" in sys.modules:
        from keras import config

        if config.backend() == "jax":
            import_module("unisono.model.keras.on_jax").prepare()


def make_backend(pure: Pure) -> Backend:
    """Local: makes the `Backend` for the framework that Keras runs on in this process."""
    from keras import config

    kind: type[Backend] = getattr(own_backend(), BACKENDS[config.backend()])
    return kind(pure)


def own_backend() -> ModuleType:
    """Local: returns our module for the framework that Keras runs on in this process. Besides its `Backend` it has, for loops of
    people's own, `through_host(function, values)`, which applies a function of torch tensors to values of the framework, in a graph
    too; and `outside_graph()`, a context in which variables can be read while a graph is made."""
    from keras import config

    name = config.backend()
    if name not in BACKENDS:
        raise UsageError(
            f"Keras runs on the backend {name!r}, which cannot train; set KERAS_BACKEND to one of {', '.join(BACKENDS)} before "
            "Python starts"
        )
    return import_module(f"unisono.model.keras.on_{name}")

"""Keras on JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor

from unisono.errors import UsageError
from unisono.model.keras.compiled import CompiledBackend
from unisono.model.keras.pure import PureResult


def prepare() -> None:
    """Local, before the first array of the process: makes JAX compute in the calling thread. Every step waits for its own
    computation, which by way of another thread takes longer than the step of a small network itself."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # type: ignore[no-untyped-call]


outside_graph = nullcontext
"""Variables can always be read here."""


def through_host(function: Callable[[list[Tensor]], list[Tensor]], values: Sequence[Any]) -> list[Any]:
    """Local but for what the function does: returns its results for these arrays. Refuses arrays of a jitted function, which have
    no values yet."""
    if any(isinstance(value, jax.core.Tracer) for value in values):
        raise UsageError(
            "optimizer.apply of strategy.run was called inside jax.jit, where workers cannot communicate; jit the function that "
            "computes the gradients, and apply them outside of it"
        )
    return [jax.numpy.asarray(one.numpy()) for one in function([torch.from_numpy(np.array(value)) for value in values])]


class JaxBackend(CompiledBackend):
    """The backend JAX: steps are jitted. A parameter that the loss does not depend on has a gradient of zero, and counts as
    used."""

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function if self.pure.model.run_eagerly else jax.jit(function)

    def with_gradients(self, function: Callable[[list[Any]], PureResult], values: list[Any]) -> tuple[PureResult, list[Any]]:
        def loss_of(now: list[Any]) -> tuple[Any, PureResult]:
            found = function(now)
            return found.loss_sum, found

        (_, found), gradients = jax.value_and_grad(loss_of, has_aux=True)(values)
        return found, gradients

    def value_of(self, variable: Any) -> Tensor:
        value = variable.value
        if str(value.dtype) != variable.dtype:
            raise UsageError(
                f"{variable.path} needs dtype {variable.dtype}, but JAX created it as {value.dtype}; set JAX_ENABLE_X64=1 before "
                "Python starts"
            )
        return self.as_tensor(value)

    def as_array(self, tensor: Tensor) -> Any:
        if tensor.dtype is torch.bfloat16:
            return jax.dlpack.from_dlpack(tensor)
        return tensor.numpy()

    def copy_to_array(self, vector: Tensor) -> Any:
        # NumPy copies a short vector in less time than torch.
        return super().copy_to_array(vector) if vector.dtype is torch.bfloat16 else vector.numpy().copy()

    def as_tensor(self, array: Any) -> Tensor:
        if array.dtype == jax.numpy.bfloat16:
            return torch.utils.dlpack.from_dlpack(array.block_until_ready())
        found = np.asarray(array)
        return torch.from_numpy(found) if found.flags.writeable else _read_only(found)

    def as_numbers(self, array: Any) -> list[float]:
        found: list[float] = np.asarray(array).tolist()
        return found


def _read_only(array: Any) -> Tensor:
    """Returns a tensor that views a read-only array of JAX, without the warning of torch, which has no read-only tensors."""
    return torch.utils.dlpack.from_dlpack(array) if array.size else torch.from_numpy(array.copy())

"""Keras on TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import tensorflow as tf
import torch
from torch import Tensor

from unisono.errors import UsageError
from unisono.model.keras.compiled import CompiledBackend
from unisono.model.keras.pure import Pure, PureResult
from unisono.model.torch.parameters import NO_GRADIENT

ALIGN_BYTES = 64

outside_graph = tf.init_scope


def through_host(function: Callable[[list[Tensor]], list[Tensor]], values: Sequence[Any]) -> list[Any]:
    """Local but for what the function does: returns its results for these tensors; in a graph, when that runs."""
    tensors = [tf.convert_to_tensor(value) for value in values]  # also of a gradient that is some rows of a table

    def on_arrays(*arrays: Any) -> list[Any]:
        return [one.numpy() for one in function([torch.from_numpy(np.array(array)) for array in arrays])]

    if tf.executing_eagerly():
        return [tf.convert_to_tensor(array) for array in on_arrays(*(tensor.numpy() for tensor in tensors))]
    found = tf.numpy_function(on_arrays, tensors, [tensor.dtype for tensor in tensors])
    for one, tensor in zip(found, tensors, strict=True):
        one.set_shape(tensor.shape)
    return list(found)


class TensorFlowBackend(CompiledBackend):
    """The backend TensorFlow: steps are graphs, compiled by XLA where the model was compiled so."""

    def __init__(self, pure: Pure) -> None:
        for gpu in tf.config.list_physical_devices("GPU"):
            with suppress(RuntimeError):  # it has begun already, and somebody else has said how
                tf.config.experimental.set_memory_growth(gpu, True)  # else the first process takes all of its memory
        super().__init__(pure)

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self.pure.model.run_eagerly:
            return function
        found: Callable[..., Any] = tf.function(
            function, jit_compile=bool(self.pure.model.jit_compile), reduce_retracing=True, autograph=False
        )
        return found

    def with_gradients(self, function: Callable[[list[Any]], PureResult], values: list[Any]) -> tuple[PureResult, list[Any]]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            found = function(values)
        gradients = [None if one is None else tf.convert_to_tensor(one) for one in tape.gradient(found.loss_sum, values)]
        self._unused = tuple(number for number, one in enumerate(gradients) if one is None)
        if len(self._unused) == len(values):
            raise UsageError(NO_GRADIENT)
        return found, [tf.zeros_like(value) if one is None else one for one, value in zip(gradients, values, strict=True)]

    def apply_optimizer(
        self, optimizer: Any, values: list[Any], gradients: list[Any], memory: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Applies the optimiser to variables of TensorFlow, without which it cannot work: those of the model and its own are
        used."""
        held = self.pure.trainable, optimizer.variables
        for variables, now in zip(held, (values, memory), strict=True):
            for variable, value in zip(variables, now, strict=True):
                variable.assign(value)
        optimizer.apply(gradients, self.pure.trainable)
        after, learned = ([tf.convert_to_tensor(variable.value) for variable in variables] for variables in held)
        return after, learned

    def value_of(self, variable: Any) -> Tensor:
        return self.as_tensor(variable.value.read_value())

    def as_array(self, tensor: Tensor) -> Any:
        tensor = tensor.contiguous()
        if tensor.data_ptr() % ALIGN_BYTES:
            tensor = tensor.clone()  # TensorFlow ends the process at an odd address; torch's own memory begins at an even one
        return tf.experimental.dlpack.from_dlpack(tensor.__dlpack__())

    def as_tensor(self, array: Any) -> Tensor:
        return torch.utils.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(array))

    def as_numbers(self, array: Any) -> list[float]:
        found: list[float] = array.numpy().tolist()
        return found

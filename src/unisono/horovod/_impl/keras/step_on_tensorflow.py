"""Keras on TensorFlow: a step that is a graph calls back to the host, once for all gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from unisono.horovod._impl.keras.step_parcels import Parcel, carry_arrays
from unisono.horovod._impl.tensorflow.function_tracing import refuse_xla

HAS_SLICES = True
"""Whether a gradient may be some rows of a table."""


def through_host(parcels: Sequence[Parcel], tensors: Sequence[Any], shapes: Sequence[Any]) -> list[Any]:
    """Runs these operations from a graph and returns their results. Collective, blocking when the step runs."""

    def carried(*arrays: Any) -> list[np.ndarray]:
        return carry_arrays(parcels, arrays)

    if tf.executing_eagerly():
        return [tf.convert_to_tensor(array) for array in carried(*(tensor.numpy() for tensor in tensors))]
    refuse_xla("hvd.DistributedOptimizer")
    found = tf.numpy_function(carried, list(tensors), [tensor.dtype for tensor in tensors])
    for tensor, shape in zip(found, shapes, strict=True):
        tensor.set_shape(shape)
    return list(found)


def is_slices(gradient: Any) -> bool:
    """Whether a gradient holds only some rows of a large table, as that of an embedding does."""
    return isinstance(gradient, tf.IndexedSlices)


def dense(slices: Any) -> Any:
    """Returns the gradient of the whole table, with zeros in the other rows. Local."""
    return tf.convert_to_tensor(slices)


def with_rows(slices: Any, values: Any, indices: Any) -> Any:
    """Returns a gradient with other rows of the same table. Local."""
    return tf.IndexedSlices(values, indices, slices.dense_shape)

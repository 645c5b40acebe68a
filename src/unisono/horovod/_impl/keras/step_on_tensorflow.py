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
    """Collective, blocking: when the step runs."""

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
    """Whether it holds some rows of a large table only, as that of an embedding does."""
    return isinstance(gradient, tf.IndexedSlices)


def dense(slices: Any) -> Any:
    """Local: the whole table."""
    return tf.convert_to_tensor(slices)


def with_rows(slices: Any, values: Any, indices: Any) -> Any:
    """Local: other rows of the same table."""
    return tf.IndexedSlices(values, indices, slices.dense_shape)

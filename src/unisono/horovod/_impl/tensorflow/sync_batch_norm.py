"""Batch normalisation over the batches of all ranks, as a layer of Keras on TensorFlow."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from unisono.horovod._impl.job.process_sets import global_process_set
from unisono.horovod._impl.tensorflow import operations
from unisono.horovod._impl.tensorflow.function_tracing import without_autograph
from unisono.horovod._impl.tensorflow.operation_names import name_for
from unisono.horovod._impl.torch.submission import Sum


class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """Batch normalisation whose mean and variance in training are those of the samples of all ranks, which may have different
    numbers of them. Calling it in training is collective."""

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused is not False:
            raise ValueError(f"SyncBatchNormalization has no fused form (received fused={fused!r}); leave fused out")
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                f"hvd.SyncBatchNormalization is for Keras on TensorFlow, and Keras runs on {keras.backend.backend()}; "
                "set KERAS_BACKEND=tensorflow"
            )
        super().__init__(**kwargs)
        self.supports_jit = False  # XLA cannot wait for other processes

    @without_autograph
    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        """Returns mean and variance over the samples of all ranks, each rank weighted by its number of samples. Collective."""
        mean, variance = super()._moments(inputs, mask)
        # In float64, so that the mean of squares minus the square of the mean keeps the digits of the variance.
        mine, spread = tf.cast(mean, tf.float64), tf.cast(variance, tf.float64)
        seen = tf.size(inputs) // tf.maximum(tf.size(mean), 1) if mask is None else tf.math.count_nonzero(mask, dtype=tf.int32)
        count = tf.cast(seen, tf.float64)
        # A rank without samples has no mean, and adds nothing.
        times = tf.math.multiply_no_nan
        sums = tf.stack([times(mine, count), times(spread + mine * mine, count), tf.ones_like(mine) * count])
        name = name_for("SyncBatchNormalization", None, mean)
        (total,) = operations.allreduce([sums], [name], Sum, 1.0, 1.0, global_process_set)
        centre = total[0] / total[2]
        return tf.cast(centre, mean.dtype), tf.cast(total[1] / total[2] - centre * centre, variance.dtype)

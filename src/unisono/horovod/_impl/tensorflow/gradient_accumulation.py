"""Accumulation of the gradients of several batches before they are reduced, for graphs of TensorFlow 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from unisono.horovod._impl.tensorflow.gradient_reduction import Reduction


class Accumulation:
    """The sums of gradients. They are local variables, so `tf.compat.v1.local_variables_initializer` sets them to zero."""

    def __init__(self, num_passes: int, mean: bool, reduction: Reduction) -> None:
        self._num_passes = num_passes
        self._mean = mean
        self._reduction = reduction
        self._sums: list[Any] = []
        self._is_last: Any = None

    def add(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Adds gradients and returns the sums, which are reduced in every last pass. Collective over the set in the last pass, else
        local."""
        for one in gradients:
            if isinstance(one, tf.IndexedSlices) and not self._reduction.sparse_as_dense:
                raise ValueError("backward_passes_per_step > 1 cannot add up tf.IndexedSlices; give sparse_as_dense=True")
        used = [position for position, one in enumerate(gradients) if one is not None]
        dense = [tf.convert_to_tensor(gradients[position]) for position in used]
        self._sums = [_local_variable(tf.zeros(one.shape, one.dtype)) for one in dense]
        passes = _local_variable(tf.zeros([], tf.int32))
        sums = [total.assign_add(one, read_value=True) for total, one in zip(self._sums, dense, strict=True)]
        with tf.control_dependencies([one.op if hasattr(one, "op") else one for one in sums]):
            self._is_last = tf.equal(tf.math.floormod(passes.assign_add(1, read_value=True), self._num_passes), 0)
        ours = [variables[position] for position in used]

        def reduced() -> list[Any]:
            found = self._reduction([tf.identity(one) for one in sums], ours)
            return [one / tf.cast(self._num_passes, one.dtype) for one in found] if self._mean else found

        found = tf.cond(self._is_last, reduced, lambda: [tf.identity(one) for one in sums])
        found = found if isinstance(found, (list, tuple)) else [found]
        result: list[Any] = [None] * len(gradients)
        for position, one in zip(used, found, strict=True):
            result[position] = one
        return result

    def apply_if_last(self, apply: Callable[[], Any], gradients: Sequence[Any]) -> Any:
        """Runs `apply` in every last pass and then sets the sums to zero; does nothing in others. Local."""

        def last() -> Any:
            with tf.control_dependencies([apply()]):
                return tf.group(*[one.assign(tf.zeros_like(one), read_value=False) for one in self._sums])

        with tf.control_dependencies([one for one in gradients if one is not None]):
            return tf.cond(self._is_last, last, tf.no_op)


def _local_variable(zeros: Any) -> Any:
    """Returns a new local variable, not trainable, which is initialised with `zeros`."""
    return tf.compat.v1.Variable(zeros, trainable=False, collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES], use_resource=True)

"""Ranks and sizes as tensors, which are read when a graph is run, not when it is made. Local."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from unisono.horovod._impl.job import basics
from unisono.horovod._impl.job.process_state import GLOBAL_ID, PROCESS
from unisono.horovod._impl.tensorflow.function_tracing import without_autograph

__all__ = ["local_rank_op", "local_size_op", "process_set_included_op", "rank_op", "size_op"]

NOT_BEGUN, UNKNOWN_SET = -1, -3
"""What `process_set_included_op` says where there is no answer."""


@without_autograph
def rank_op(name: str | None = None) -> Any:
    return _asked(basics.rank, name)


@without_autograph
def local_rank_op(name: str | None = None) -> Any:
    return _asked(basics.local_rank, name)


@without_autograph
def local_size_op(name: str | None = None) -> Any:
    return _asked(basics.local_size, name)


@without_autograph
def size_op(process_set_id: int = GLOBAL_ID, name: str | None = None) -> Any:
    """Returns the number of ranks of a process set."""
    return _asked(lambda: len(PROCESS.ranks_of(process_set_id)), name)


@without_autograph
def process_set_included_op(process_set_id: int = GLOBAL_ID, name: str | None = None) -> Any:
    """Returns 1 if this rank is in the process set, 0 if not; negative where there is no such set."""

    def ask() -> int:
        if not PROCESS.has_begun:
            return NOT_BEGUN
        ranks = PROCESS.sets().get(process_set_id)
        return UNKNOWN_SET if ranks is None else int(PROCESS.topology.rank in ranks)

    return _asked(ask, name)


def _asked(ask: Callable[[], int], name: str | None) -> Any:
    if tf.executing_eagerly():
        return tf.constant(ask(), tf.int32)
    with tf.device("CPU:0"):
        found = tf.numpy_function(lambda: np.array(ask(), np.int32), [], tf.int32, stateful=True, name=name)
    found.set_shape([])
    return found

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
    """Returns a tensor: the rank of this process in the job."""
    return _answer_when_run(basics.rank, name)


@without_autograph
def local_rank_op(name: str | None = None) -> Any:
    """Returns a tensor: the rank among the processes of this node."""
    return _answer_when_run(basics.local_rank, name)


@without_autograph
def local_size_op(name: str | None = None) -> Any:
    """Returns a tensor: the number of processes of this node."""
    return _answer_when_run(basics.local_size, name)


@without_autograph
def size_op(process_set_id: int = GLOBAL_ID, name: str | None = None) -> Any:
    """Returns a tensor: the number of ranks of a process set."""
    return _answer_when_run(lambda: len(PROCESS.ranks_of(process_set_id)), name)


@without_autograph
def process_set_included_op(process_set_id: int = GLOBAL_ID, name: str | None = None) -> Any:
    """Returns a tensor: 1 if this rank is in the process set, 0 if not, -1 before `init`, -3 where there is no such set."""

    def ask() -> int:
        if not PROCESS.has_begun:
            return NOT_BEGUN
        ranks = PROCESS.sets().get(process_set_id)
        return UNKNOWN_SET if ranks is None else int(PROCESS.topology.rank in ranks)

    return _answer_when_run(ask, name)


def _answer_when_run(ask: Callable[[], int], name: str | None) -> Any:
    """Returns a whole number as a tensor, which a graph asks for each time it is run."""
    if tf.executing_eagerly():
        return tf.constant(ask(), tf.int32)
    with tf.device("CPU:0"):
        found = tf.numpy_function(lambda: np.array(ask(), np.int32), [], tf.int32, stateful=True, name=name)
    found.set_shape([])
    return found

"""Broadcast of the variables of one rank to all. Collective over the process set, blocking when run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from unisono.horovod._impl.job.process_sets import ProcessSet, global_process_set
from unisono.horovod._impl.keras.replicas import shared_variables
from unisono.horovod._impl.tensorflow import operations
from unisono.horovod._impl.tensorflow.error_names import by_either_name
from unisono.horovod._impl.tensorflow.function_tracing import without_autograph


@without_autograph
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,  # noqa: ARG001 -- a promise about memory only; the values are the same
) -> Any:
    """Copies the root's values into variables of TensorFlow or Keras, except the states of Keras's random generators. In a graph of
    TensorFlow 1 it returns the operation that does so when run."""
    assigned = _assigned(shared_variables(variables), root_rank, None, process_set)
    return None if tf.executing_eagerly() else tf.group(*assigned)


@without_autograph
def broadcast_(
    variables: Sequence[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Copies the root's values into the variables and returns the values."""
    held = list(variables)
    assigned = _assigned(held, root_rank, name, process_set)
    if tf.executing_eagerly():
        return [tf.convert_to_tensor(one) for one in held]
    with tf.control_dependencies([one for one in assigned if one is not None]):
        return [tf.identity(one.read_value()) for one in held]


@without_autograph
def broadcast_global_variables(root_rank: int) -> Any:
    """Returns the operation that copies the root's values to all global variables, in a graph of TensorFlow 1."""
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables needs a graph, but TensorFlow runs eagerly; call "
            "hvd.broadcast_variables(model.variables, root_rank=0), and the same with the variables of the optimizer"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """A hook for `tf.compat.v1.train.MonitoredTrainingSession(hooks=[...])`: all ranks begin with the root's variables."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Adds the broadcast of all global variables to the graph. Local."""
        if self.bcast_op is None or self.bcast_op.graph != tf.compat.v1.get_default_graph():
            with tf.device(self.device or None):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002 -- as hooks are called
        """Runs the broadcast. Collective, blocking."""
        session.run(self.bcast_op)


def _assigned(held: Sequence[Any], root_rank: int, name: str | None, process_set: ProcessSet) -> list[Any]:
    """The operation that assigns a value, through the methods that variables of all kinds have."""
    if not held:
        return []
    with by_either_name():
        values = [tf.convert_to_tensor(one) for one in held]
        names = operations.names_of("Broadcast", name, values, ignore_name_scope=False, grouped=True)
        found = operations.broadcast(values, names, root_rank, process_set, grouped=True)
    return [one.assign(value) for one, value in zip(held, found, strict=True)]

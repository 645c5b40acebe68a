"""The elastic state of TensorFlow variables, which survives the loss of workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from unisono.horovod._impl.elastic.surviving_state import ObjectState
from unisono.horovod._impl.job.basics import rank
from unisono.horovod._impl.keras.elastic_state import KerasState
from unisono.horovod._impl.tensorflow.object_exchange import broadcast_object
from unisono.horovod._impl.tensorflow.variable_broadcast import broadcast_variables


class TensorFlowState(ObjectState):
    """Variables, and the values that `kwargs` names, each an attribute. In a graph of TensorFlow 1 also the session."""

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        self.variables = list(tf.compat.v1.global_variables() if variables is None else variables)
        self.session = session or (None if tf.executing_eagerly() else tf.compat.v1.get_default_session())
        self._into: dict[int, tuple[Any, Any]] = {}
        self._send: Any = None
        self._values = self._read_values()
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **kwargs)

    def save(self) -> None:
        """Copies everything. Local."""
        self._values = self._read_values()
        super().save()

    def restore(self) -> None:
        """Returns to the last copy. Local."""
        for variable, value in zip(self.variables, self._values, strict=True):
            self._write_value(variable, value)
        super().restore()

    def sync(self) -> None:
        """Gives all ranks the values of rank 0. Collective, blocking."""
        if self.session is None:
            broadcast_variables(self.variables, root_rank=0)
        else:
            if self._send is None:  # once, as a graph keeps all that is added to it
                self._send = broadcast_variables(self.variables, root_rank=0)
            self.session.run(self._send)
        super().sync()
        self._values = self._read_values()  # last, so that who is lost on the way leaves the others with what they had before

    def _read_values(self) -> list[Any]:
        """Returns the present values of all variables as arrays."""
        if self.session is not None:
            return list(self.session.run(self.variables))
        return [variable.numpy() for variable in self.variables]

    def _write_value(self, variable: Any, value: Any) -> None:
        """Assigns a value to a variable, in a session by an operation that is made once."""
        if self.session is None:
            variable.assign(value)
            return
        if id(variable) not in self._into:
            place = tf.compat.v1.placeholder(variable.dtype.base_dtype, variable.shape)
            self._into[id(variable)] = place, variable.assign(place).op
        place, assign = self._into[id(variable)]
        self.session.run(assign, {place: value})


class TensorFlowKerasState(KerasState):
    """A Keras model with its optimiser, and the values that `kwargs` names."""

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        if backend is not None:
            raise ValueError(
                "backend= was for sessions of Keras on TensorFlow 1 (TensorFlowKerasState); leave it out, Keras 3 runs eagerly"
            )
        super().__init__(model, optimizer, **kwargs)

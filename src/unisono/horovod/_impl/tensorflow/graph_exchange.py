"""How tensors of TensorFlow reach the engine and come back.

Outside of graphs this is a plain call. A graph gets three nodes for an operation: one submits, one waits, one takes the result.

TensorFlow runs the nodes of a graph on few threads, and ranks may come to their operations in different orders. A node that held a
thread while it waits could keep the one from running that its peers wait for. So what waits is a queue of TensorFlow, which holds
no thread; the engine puts something into it when the operation is done. And the nodes are declared to be without effects, as
TensorFlow would otherwise run them in the order of the program, each after the end of the one before.

Functions that are called in a graph may have operations of the same names, and then only the order of the program tells them apart.
So a call is run after everything before it, and before everything behind it: to TensorFlow, each function writes to one variable of
the process, and each operation reads it when it begins and when it has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import tensorflow as tf
import torch
from tensorflow.python.ops.resource_variable_ops import ResourceVariable  # TensorFlow tells it nowhere else

from unisono.horovod._impl.job.process_state import PROCESS
from unisono.horovod._impl.numpy_tensors import as_array, as_tensor
from unisono.horovod._impl.tensorflow.error_names import by_either_name
from unisono.horovod._impl.tensorflow.function_tracing import graph_list, refuse_xla

Submit = Callable[[list[torch.Tensor]], list[int]]
"""Local, not blocking: from tensors, which belong to it, to the handles of operations. Each of them gives a list of tensors."""

_SAME_BITS = {"uint16": np.int16, "uint32": np.int32, "uint64": np.int64}.items()
"""Types of NumPy that travel as others of their size, where nothing is computed with them."""


def exchange(submit: Submit, inputs: Sequence[Any], outputs: Sequence[tf.TensorSpec]) -> list[Any]:
    """Submits operations on the inputs and returns their results, with types and shapes as in `outputs`. Collective, blocking when
    run."""
    if not tf.executing_eagerly():
        return _exchange_in_graph(submit, inputs, outputs)
    with by_either_name():
        handles = submit(
            [_copy_in(np.asarray(one.numpy())) for one in inputs]
        )  # of itself NumPy makes no array of a single bfloat16
        arrays = _results(handles, outputs)
    return [tf.convert_to_tensor(array) for array in arrays]


def _exchange_in_graph(submit: Submit, inputs: Sequence[Any], outputs: Sequence[tf.TensorSpec]) -> list[Any]:
    """Adds nodes to the graph that submit the operations, wait for them and give their results; returns the result tensors."""
    refuse_xla("an operation of horovod.tensorflow")
    node = _Node(submit, outputs)
    is_function = tf.compat.v1.executing_eagerly_outside_functions()
    with tf.device("CPU:0"):
        if is_function:
            now = _now()
            with tf.control_dependencies([_turn().read_value()]):
                handles = tf.numpy_function(node.submit, [now, *inputs], tf.int64, stateful=False)
            with tf.control_dependencies([handles]):
                done = [node.queue().dequeue()]
        else:
            handles = tf.numpy_function(node.submit, [tf.constant(0.0), *inputs], tf.int64, stateful=True)
            done = [_wait_on_data_thread(handles)]
        with tf.control_dependencies(done):
            results = tf.numpy_function(node.take_results, [handles], [one.dtype for one in outputs], stateful=False)
        if is_function:
            with tf.control_dependencies(results):
                _turn().read_value()
    graph = tf.compat.v1.get_default_graph()
    if hasattr(graph, "control_outputs"):  # a result that the function does not use is taken all the same
        graph.control_outputs.extend({result.op.name: result.op for result in results}.values())
    for result, spec in zip(results, outputs, strict=True):
        result.set_shape(spec.shape)
    return list(results)


def _wait_on_data_thread(handles: Any) -> Any:
    """A tensor that is ready when these operations are done, in a session of TensorFlow 1. Its queues are out of reach of the
    engine, but it reads data sets in other threads than the nodes: one such thread waits here."""

    def wait(held: Any) -> Any:
        return tf.numpy_function(_wait_for_handles, [held], tf.bool, stateful=False)

    shape = {"output_types": [tf.bool], "output_shapes": [None]}
    rows = tf.data.Dataset.from_tensors(handles).map(wait)
    aside = tf.raw_ops.PrivateThreadPoolDataset(input_dataset=rows._variant_tensor, num_threads=1, **shape)
    return tf.raw_ops.DatasetToSingleElement(dataset=aside, **shape)[0]


def _wait_for_handles(handles: np.ndarray) -> np.ndarray:
    """Waits for these operations and returns true, as an element of a data set. Blocking."""
    for handle in handles:
        PROCESS.handles.wait(int(handle))
    return np.array(True)


def _now() -> Any:
    """A tensor that is not known before the graph is run, so that operations which depend on it are not computed in advance. With
    it the function writes to the variable of `_turn`, once: a function that only read it would not be waited for."""
    held = graph_list(tf.compat.v1.get_default_graph(), "now")
    if not held:
        with tf.control_dependencies(None):
            held.append(tf.timestamp())
            _turn().assign_add(1, read_value=False)
    return held[0]


@cache
def _turn() -> Any:
    """The variable that orders functions, used while tracing. One for the process, as any two functions may be called in a
    third."""
    with tf.init_scope(), tf.device("CPU:0"):
        # Not `tf.Variable`: a `tf.function` lets none be made but in its first trace, which may have no operation in it.
        return ResourceVariable(0, trainable=False, dtype=tf.int64)


class _Node:
    """One operation of a graph, which is run many times."""

    def __init__(self, submit: Submit, outputs: Sequence[tf.TensorSpec]) -> None:
        self._submit = submit
        self._outputs = tuple(outputs)
        self._queue: Any = None
        self._handles: list[int] = []
        self._lock = threading.Lock()

    def queue(self) -> Any:
        """Makes the queue that receives an element at the end of each run; called while tracing."""
        with tf.init_scope(), tf.device("CPU:0"):
            self._queue = tf.queue.FIFOQueue(1000, [tf.bool], shapes=[[]])
        return self._queue

    def submit(self, _: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
        """Submits the operations of a run and returns their handles. Local, not blocking."""
        self._clear()
        handles = self._submit([_copy_in(array) for array in arrays])
        self._handles = handles
        if self._queue is not None:
            self._enqueue_when_done(handles)
        return np.array(handles, np.int64)

    def take_results(self, handles: np.ndarray) -> list[np.ndarray]:
        """Returns the results of a run. Blocks if no node has waited before."""
        self._handles = []
        return _results([int(handle) for handle in handles], self._outputs)

    def _clear(self) -> None:
        """Discards what a failed run has left."""
        left, self._handles = self._handles, []
        if left:
            for handle in left:
                PROCESS.handles.forget(handle)
            if self._queue is not None:
                for _ in range(int(self._queue.size())):
                    self._queue.dequeue()

    def _enqueue_when_done(self, handles: Sequence[int]) -> None:
        """Adds an element to the node's queue when the last of these operations is done. Not blocking."""
        left = set(handles)

        def one_is_done(handle: int) -> None:
            with self._lock:
                is_last = left == {handle}
                left.discard(handle)
            if is_last and self._handles is handles:
                self._queue.enqueue(True)

        for handle in handles:
            PROCESS.handles.when_done(handle, partial(one_is_done, handle))


def _copy_in(array: np.ndarray) -> torch.Tensor:
    """A copy of an input: TensorFlow uses its memory again while the operation is in flight."""
    mine = np.array(array, order="C")
    for name, other in _SAME_BITS:
        if mine.dtype.name == name:
            mine = mine.view(other)
    return as_tensor(mine)


def _results(handles: Sequence[int], outputs: Sequence[tf.TensorSpec]) -> list[np.ndarray]:
    """The results of all handles, all of which are waited for even if one fails, so that none is left behind. Blocking."""
    found: list[torch.Tensor] = []
    failure: Exception | None = None
    for handle in handles:
        try:
            found += PROCESS.handles.synchronize(handle) or []
        except Exception as error:  # noqa: BLE001 -- raised below
            failure = failure or error
    if failure is not None:
        raise failure
    arrays = [as_array(one, spec.dtype.as_numpy_dtype) for one, spec in zip(found, outputs, strict=True)]
    return [array.view(spec.dtype.as_numpy_dtype) for array, spec in zip(arrays, outputs, strict=True)]

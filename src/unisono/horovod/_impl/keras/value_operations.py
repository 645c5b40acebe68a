"""Operations on values: numbers, NumPy arrays, tensors of the backend. Collective over all ranks, blocking; not inside a compiled
function. On TensorFlow the result is a tensor, as in Horovod; on other backends only for a tensor, else what NumPy makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from unisono.horovod._impl.compressor import Compressor
from unisono.horovod._impl.job.process_sets import ProcessSet, global_process_set
from unisono.horovod._impl.keras.compression import Compression
from unisono.horovod._impl.keras.step_backend import backend_name
from unisono.horovod._impl.numpy_tensors import as_array, as_tensor
from unisono.horovod._impl.torch.operations import (
    allgather_async,
    allreduce_async,
    broadcast_async,
    reducescatter_async,
    synchronize,
)
from unisono.horovod._impl.torch.submission import Average, Sum

__all__ = ["allgather", "allreduce", "broadcast", "reducescatter"]


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: type[Compressor] = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the mean over the ranks, or another reduction."""
    if op is not None and average is not None and average != (op == Average):
        raise ValueError(f"average={average} and op={op!r} contradict each other; give op alone")
    chosen = op if op is not None else Sum if average is False else Average
    value = _tensor_if_tensorflow(value)
    small, undo = (value, None) if compression is Compression.none else compression.compress(_as_backend_tensor(value))
    array = _as_numpy(small)
    handle = allreduce_async(as_tensor(array), None, name, chosen, prescale_factor, postscale_factor, process_set)
    found = _in_form_of(small, as_array(synchronize(handle), array.dtype))
    if compression is Compression.none:
        return found
    restored = compression.decompress(found, undo)
    return restored if _is_tensor(value) else _as_numpy(restored)


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Returns the rows of all ranks, one rank after another; their number may differ."""
    value = _tensor_if_tensorflow(value)
    array = _as_numpy(value)
    return _in_form_of(value, as_array(synchronize(allgather_async(as_tensor(array), name, process_set)), array.dtype))


def broadcast(value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Returns the value of `root_rank`."""
    value = _tensor_if_tensorflow(value)
    array = _as_numpy(value)
    return _in_form_of(value, as_array(synchronize(broadcast_async(as_tensor(array), root_rank, name, process_set)), array.dtype))


def reducescatter(value: Any, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set) -> Any:
    """Returns this rank's rows of the reduction."""
    value = _tensor_if_tensorflow(value)
    array = _as_numpy(value)
    return _in_form_of(value, as_array(synchronize(reducescatter_async(as_tensor(array), name, op, process_set)), array.dtype))


def _tensor_if_tensorflow(value: Any) -> Any:
    """The value as a tensor on TensorFlow, so that results have `.numpy()`, as programs for Horovod expect; else the value
    itself."""
    return _as_backend_tensor(value) if backend_name() == "tensorflow" else value


def _is_tensor(value: Any) -> bool:
    """Whether a value is a tensor or a variable of the Keras backend."""
    from keras import Variable, ops

    return ops.is_tensor(value) or isinstance(value, Variable)


def _as_backend_tensor(value: Any) -> Any:
    """Returns a value as a tensor of the Keras backend."""
    from keras import ops

    return ops.convert_to_tensor(value)


def _as_numpy(value: Any) -> np.ndarray:
    """Returns a value as a NumPy array."""
    from keras import ops

    if not _is_tensor(value):
        return np.asarray(value)
    # As a vector: TensorFlow makes no array of a single bfloat16.
    array: np.ndarray = ops.convert_to_numpy(ops.reshape(value, (-1,))).reshape(tuple(value.shape))
    return array


def _in_form_of(value: Any, array: np.ndarray) -> Any:
    """Returns an array as a tensor of the backend if `value` is one; else as an array, or as a number if it has no dimensions."""
    from keras import ops

    if _is_tensor(value):
        return ops.convert_to_tensor(array)
    return array[()]

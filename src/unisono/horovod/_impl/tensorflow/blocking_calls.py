"""The operations that users call, on tensors, variables and slices, compressed or not. Collective over the process set, blocking
when run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from unisono.horovod._impl.compressor import Compressor
from unisono.horovod._impl.job.process_sets import ProcessSet, global_process_set
from unisono.horovod._impl.tensorflow import operations
from unisono.horovod._impl.tensorflow.compression import Compression
from unisono.horovod._impl.tensorflow.error_names import by_either_name
from unisono.horovod._impl.tensorflow.function_tracing import without_autograph
from unisono.horovod._impl.tensorflow.operations import names_of
from unisono.horovod._impl.tensorflow.sparse_slices import gather_slices
from unisono.horovod._impl.torch.submission import Average, choose_op


@without_autograph
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Returns the reduction of a tensor or variable; of slices, the slices of all ranks."""
    op = choose_op(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        with tf.device(device_sparse or None):
            return gather_slices([tensor], op, prescale_factor, postscale_factor, name, process_set, ignore_name_scope)[0]
    with tf.device(device_dense or None), by_either_name():
        small, undo = compression.compress(_as_tf_tensor(tensor))
        names = names_of("Allreduce", name, [small], ignore_name_scope)
        (result,) = operations.allreduce([small], names, op, prescale_factor, postscale_factor, process_set)
        return compression.decompress(result, undo)


@without_autograph
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Returns the reductions of a list, all or nothing."""
    op = choose_op(op, average)
    sparse = [position for position, one in enumerate(tensors) if isinstance(one, tf.IndexedSlices)]
    dense = [position for position in range(len(tensors)) if position not in sparse]
    results: list[Any] = [None] * len(tensors)
    if sparse:
        with tf.device(device_sparse or None):
            slices = [tensors[position] for position in sparse]
            found = gather_slices(slices, op, prescale_factor, postscale_factor, name, process_set, ignore_name_scope)
        for position, one in zip(sparse, found, strict=True):
            results[position] = one
    if dense:
        with tf.device(device_dense or None), by_either_name():
            pairs = [compression.compress(_as_tf_tensor(tensors[position])) for position in dense]
            smalls = [small for small, _ in pairs]
            names = names_of("Allreduce", name, smalls, ignore_name_scope, grouped=True)
            reduced = operations.allreduce(smalls, names, op, prescale_factor, postscale_factor, process_set, grouped=True)
            for position, one, (_, undo) in zip(dense, reduced, pairs, strict=True):
                results[position] = compression.decompress(one, undo)
    return results


@without_autograph
def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the rows of all ranks, one rank after another; their number may differ."""
    with by_either_name():
        held = _as_tf_tensor(tensor)
        return operations.allgather([held], names_of("Allgather", name, [held], ignore_name_scope), process_set)[0]


@without_autograph
def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns the rows of all ranks for each tensor of a list, all or nothing."""
    if not tensors:
        return []
    with by_either_name():
        held = [_as_tf_tensor(tensor) for tensor in tensors]
        names = names_of("Allgather", name, held, ignore_name_scope, grouped=True)
        return operations.allgather(held, names, process_set, grouped=True)


@without_autograph
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the values of `root_rank`, a rank of the whole job."""
    with by_either_name():
        held = _as_tf_tensor(tensor)
        return operations.broadcast([held], names_of("Broadcast", name, [held], ignore_name_scope), root_rank, process_set)[0]


@without_autograph
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends `splits[r]` rows to each rank r; returns the rows that came and, if `splits` was given, how many came from each."""
    with by_either_name():
        counts = None if splits is None else tf.convert_to_tensor(splits)
        rows, received = operations.alltoall(_as_tf_tensor(tensor), counts, name, process_set, ignore_name_scope)
    return rows if splits is None else (rows, received)


@without_autograph
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Returns this rank's rows of the reduction; the first ranks get one more where they do not divide."""
    with tf.device(device_dense or None), by_either_name():
        small, undo = compression.compress(_as_tf_tensor(tensor))
        names = names_of("Reducescatter", name, [small], ignore_name_scope)
        (result,) = operations.reducescatter([small], names, op, prescale_factor, postscale_factor, process_set)
        return compression.decompress(result, undo)


@without_autograph
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    ignore_name_scope: bool = False,
) -> list[Any]:
    """Returns this rank's rows of the reductions of a list, all or nothing."""
    if not tensors:
        return []
    with tf.device(device_dense or None), by_either_name():
        pairs = [compression.compress(_as_tf_tensor(tensor)) for tensor in tensors]
        smalls = [small for small, _ in pairs]
        names = names_of("Reducescatter", name, smalls, ignore_name_scope, grouped=True)
        results = operations.reducescatter(smalls, names, op, prescale_factor, postscale_factor, process_set, grouped=True)
        return [compression.decompress(one, undo) for one, (_, undo) in zip(results, pairs, strict=True)]


@without_autograph
def join() -> Any:
    """Says that this rank has no more data: it adds zeros until all have joined. Returns the rank that joined last. Collective over
    all ranks."""
    with by_either_name():
        return operations.join()


def _as_tf_tensor(tensor: Any) -> Any:
    return tf.convert_to_tensor(tensor)

"""The operations on lists of TensorFlow tensors, with their gradients. Collective over the process set, blocking when run.

A list is submitted at once. With `grouped` it is one operation of one name, else each tensor has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import torch

from unisono.horovod._impl.engine.operation_entry import Entry
from unisono.horovod._impl.engine.operation_request import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, JOIN, REDUCESCATTER, Request
from unisono.horovod._impl.exceptions import HorovodInternalError
from unisono.horovod._impl.job.process_sets import ProcessSet
from unisono.horovod._impl.job.process_state import GLOBAL_ID, PROCESS
from unisono.horovod._impl.tensorflow.graph_exchange import exchange
from unisono.horovod._impl.tensorflow.operation_names import name_for
from unisono.horovod._impl.torch.operations import alltoall_async
from unisono.horovod._impl.torch.submission import Average, Sum, start

Names = Sequence[str | None]
"""One for each operation: for each tensor, or for the group."""


def names_of(
    kind: str, name: str | None, tensors: Sequence[Any], ignore_name_scope: bool, grouped: bool = False
) -> list[str | None]:
    """Returns the names of one operation on each tensor, or of one on all of them. Local."""
    if grouped:
        return [name_for(f"Grouped{kind}", name, tensors[0], ignore_name_scope)]
    return [name_for(kind, name, tensor, ignore_name_scope) for tensor in tensors]


def allreduce(
    tensors: Sequence[Any],
    names: Names,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    grouped: bool = False,
) -> list[Any]:
    """Returns the reductions. Their gradient is the same reduction of the gradients."""

    def submit(held: list[torch.Tensor]) -> list[int]:
        return [
            start(
                ALLREDUCE,
                part,
                process_set,
                _outputs,
                name=name,
                outputs=part,
                grouped=grouped,
                op=op,
                prescale=prescale,
                postscale=postscale,
            )
            for part, name in zip(_input_groups(held, grouped), names, strict=True)
        ]

    def forward(*xs: Any) -> Any:
        def backward(*dys: Any) -> list[Any]:
            slopes = _gradient_tensors(dys, xs)
            return allreduce(slopes, names_of("Allreduce", None, slopes, False), op, prescale, postscale, process_set)

        return exchange(submit, xs, [_spec_of(x) for x in xs]), backward

    return list(tf.custom_gradient(forward)(*_as_tf_tensors(tensors)))


def allgather(tensors: Sequence[Any], names: Names, process_set: ProcessSet, grouped: bool = False) -> list[Any]:
    """Returns the rows of all ranks. The gradient is this rank's rows of the mean of the gradients."""
    held = _as_tf_tensors(tensors)
    _check_rows(ALLGATHER, held)

    def submit(tensors: list[torch.Tensor]) -> list[int]:
        me = process_set.rank()

        def rows_and_spans(entry: Entry) -> list[torch.Tensor]:
            return [*entry.outputs, *(torch.tensor([sum(rows[:me]), rows[me]]) for rows in entry.sizes)]

        return [
            start(ALLGATHER, part, process_set, rows_and_spans, name=name, grouped=grouped)
            for part, name in zip(_input_groups(tensors, grouped), names, strict=True)
        ]

    def forward(*xs: Any) -> Any:
        rows = [tf.TensorSpec([None, *x.shape[1:]] if x.shape.rank is not None else None, x.dtype) for x in xs]
        spans = [tf.TensorSpec([2], tf.int64) for _ in xs]
        pairs = zip(rows, spans, strict=True)
        found = exchange(submit, xs, [*rows, *spans] if grouped else [one for pair in pairs for one in pair])
        ours = found[len(xs) :] if grouped else found[1::2]

        def backward(*dys: Any) -> list[Any]:
            slopes = _gradient_tensors(dys, xs)
            means = allreduce(slopes, names_of("Allreduce", None, slopes, False), Average, 1.0, 1.0, process_set)
            return [mean[span[0] : span[0] + span[1]] for mean, span in zip(means, ours, strict=True)]

        return found[: len(xs)] if grouped else found[::2], backward

    return list(tf.custom_gradient(forward)(*held))


def broadcast(tensors: Sequence[Any], names: Names, root_rank: int, process_set: ProcessSet, grouped: bool = False) -> list[Any]:
    """Returns the root's values. The gradient is the mean of the gradients on the root and zero elsewhere."""

    def submit(held: list[torch.Tensor]) -> list[int]:
        members = PROCESS.ranks_of(_process_set_number(process_set))
        if root_rank not in members:
            raise ValueError(f"root_rank must be a rank of {process_set} ({list(members)}); received {root_rank}")
        return [
            start(BROADCAST, part, process_set, _outputs, name=name, outputs=part, grouped=grouped, root=int(root_rank))
            for part, name in zip(_input_groups(held, grouped), names, strict=True)
        ]

    def forward(*xs: Any) -> Any:
        def backward(*dys: Any) -> list[Any]:
            slopes = _gradient_tensors(dys, xs)
            means = allreduce(slopes, names_of("Allreduce", None, slopes, False), Average, 1.0, 1.0, process_set)
            if PROCESS.topology.rank == root_rank:
                return means
            with tf.control_dependencies(means):  # the root waits for us, so they are computed though not used
                return [tf.zeros_like(mean) for mean in means]

        return exchange(submit, xs, [_spec_of(x) for x in xs]), backward

    return list(tf.custom_gradient(forward)(*_as_tf_tensors(tensors)))


def alltoall(tensor: Any, splits: Any, name: str | None, process_set: ProcessSet, ignore_name_scope: bool) -> tuple[Any, Any]:
    """Returns the rows that came, and how many from each rank. The gradient is sent back the same way."""
    (held,) = _as_tf_tensors([tensor])
    _check_rows(ALLTOALL, [held])
    title = name_for("Alltoall", name, held, ignore_name_scope)

    def submit(given: list[torch.Tensor]) -> list[int]:
        rows, size = given[0].shape[0], process_set.size()
        even = None if rows % size else torch.full([size], rows // size, dtype=torch.int32)
        return [alltoall_async(given[0], given[1] if len(given) > 1 else even, title, process_set)]

    def forward(x: Any, *given: Any) -> Any:
        specs = [
            tf.TensorSpec([None, *x.shape[1:]] if x.shape.rank is not None else None, x.dtype),
            tf.TensorSpec([None], tf.int32),
        ]
        rows, counts = exchange(submit, [x, *given], specs)

        def backward(slope: Any, _: Any) -> list[Any]:
            back, _ = alltoall(_gradient_tensors([slope], [x])[0], counts, None, process_set, False)
            return [back, *(None for _ in given)]

        return (rows, counts), backward

    rows, counts = tf.custom_gradient(forward)(held, *([] if splits is None else [splits]))
    return rows, counts


def reducescatter(
    tensors: Sequence[Any],
    names: Names,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    grouped: bool = False,
) -> list[Any]:
    """Returns this rank's rows of the reductions. The gradient is that of all ranks, in their places."""
    if op not in (Average, Sum):
        raise HorovodInternalError(f"reducescatter supports hvd.Average and hvd.Sum only; received op={op!r}")
    held = _as_tf_tensors(tensors)
    _check_rows(REDUCESCATTER, held)

    def submit(tensors: list[torch.Tensor]) -> list[int]:
        return [
            start(
                REDUCESCATTER,
                part,
                process_set,
                _outputs,
                name=name,
                grouped=grouped,
                op=op,
                prescale=prescale,
                postscale=postscale,
            )
            for part, name in zip(_input_groups(tensors, grouped), names, strict=True)
        ]

    def forward(*xs: Any) -> Any:
        def backward(*dys: Any) -> list[Any]:
            factor = prescale * postscale * (process_set.size() if op == Sum else 1)
            slopes = [slope * tf.cast(factor, slope.dtype) for slope in _gradient_tensors(dys, xs)]
            return allgather(slopes, names_of("Allgather", None, slopes, False), process_set)

        specs = [tf.TensorSpec([None, *x.shape[1:]] if x.shape.rank is not None else None, x.dtype) for x in xs]
        return exchange(submit, xs, specs), backward

    return list(tf.custom_gradient(forward)(*held))


def join() -> Any:
    """Says that this rank has no more data; returns the rank that joined last. Collective over all ranks."""

    def last(entry: Entry) -> list[torch.Tensor]:
        assert entry.last_joined is not None
        return [torch.tensor(PROCESS.ranks_of(GLOBAL_ID)[entry.last_joined], dtype=torch.int32)]

    def submit(_: list[torch.Tensor]) -> list[int]:
        entry = Entry(Request(JOIN, JOIN))
        PROCESS.channel(GLOBAL_ID).submit(entry)
        return [PROCESS.handles.add(entry, last)]

    return exchange(submit, [], [tf.TensorSpec([], tf.int32)])[0]


def _as_tf_tensors(tensors: Sequence[Any]) -> list[Any]:
    """Returns the values as tensors; `ValueError` for texts and other types that cannot be sent."""
    held = [tf.convert_to_tensor(tensor) for tensor in tensors]
    for tensor in held:
        if tensor.dtype in (tf.string, tf.variant, tf.resource):
            raise ValueError(f"tensors of {tensor.dtype.name} cannot be sent; give numbers, or use hvd.broadcast_object")
    return held


def _gradient_tensors(dys: Sequence[Any], xs: Sequence[Any]) -> list[Any]:
    """The gradients as tensors of the right type: TensorFlow also passes slices, and zeros of another type where it has none."""
    return [tf.cast(tf.convert_to_tensor(dy), x.dtype) for dy, x in zip(dys, xs, strict=True)]


def _spec_of(x: Any) -> tf.TensorSpec:
    """Returns shape and type of a tensor, as a `TensorSpec`."""
    return tf.TensorSpec(x.shape, x.dtype)


def _input_groups(held: list[torch.Tensor], grouped: bool) -> list[list[torch.Tensor]]:
    """Returns the inputs of each operation: all in one if `grouped`, else one for each tensor."""
    return [held] if grouped else [[one] for one in held]


def _outputs(entry: Entry) -> list[torch.Tensor]:
    """Returns the outputs of a finished operation."""
    return entry.outputs


def _process_set_number(process_set: ProcessSet) -> int:
    """Returns the number of a process set; -1 if it is not registered."""
    return -1 if process_set.process_set_id is None else process_set.process_set_id


def _check_rows(kind: str, tensors: Sequence[Any]) -> None:
    """Raises `ValueError` for a tensor without dimensions, as the operation counts rows."""
    for tensor in tensors:
        if tensor.shape.rank == 0:
            raise ValueError(f"{kind} needs tensors with at least one dimension; received a scalar; give tf.reshape(tensor, [1])")

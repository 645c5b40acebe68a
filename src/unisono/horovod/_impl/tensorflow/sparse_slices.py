"""Sums and means of sparse gradients: the slices of all ranks, one rank after another. Collective over the process set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from unisono.horovod._impl.job.process_sets import ProcessSet
from unisono.horovod._impl.tensorflow import operations
from unisono.horovod._impl.tensorflow.error_names import by_either_name
from unisono.horovod._impl.tensorflow.rank_queries import size_op
from unisono.horovod._impl.torch.submission import Average, Sum


def gather_slices(
    slices: Sequence[tf.IndexedSlices],
    op: int,
    prescale: float,
    postscale: float,
    name: str | None,
    process_set: ProcessSet,
    ignore_name_scope: bool,
) -> list[tf.IndexedSlices]:
    """Returns the slices of all ranks, gathered as one operation; an index that several ranks have occurs several times. Blocking
    when run."""
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"tf.IndexedSlices can be reduced with hvd.Average and hvd.Sum only, received op={op!r}; "
            "make them dense (sparse_as_dense=True, or tf.convert_to_tensor)"
        )
    if prescale != 1.0 or postscale != 1.0:
        raise NotImplementedError(
            "tf.IndexedSlices are not scaled by prescale_factor and postscale_factor; scale their values, or make them dense"
        )
    with by_either_name():
        held = [tf.convert_to_tensor(one) for each in slices for one in (each.values, each.indices)]
        names = operations.names_of("Allgather", name, held, ignore_name_scope, grouped=True)
        found = operations.allgather(held, names, process_set, grouped=True)
    pairs = zip(found[::2], found[1::2], strict=True)
    return [
        tf.IndexedSlices(_mean(values, process_set) if op == Average else values, indices, each.dense_shape)
        for (values, indices), each in zip(pairs, slices, strict=True)
    ]


def _mean(values: Any, process_set: ProcessSet) -> Any:
    """The mean; also of whole numbers it is a fraction, as TensorFlow divides."""
    return values / tf.cast(size_op(process_set.process_set_id or 0), values.dtype)

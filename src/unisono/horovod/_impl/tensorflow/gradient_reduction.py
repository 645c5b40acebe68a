"""Reduction of the gradients of a model: dense or sparse, compressed or not, alone or in groups, and some not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import tensorflow as tf

from unisono.horovod._impl.compressor import Compressor
from unisono.horovod._impl.job.process_sets import ProcessSet
from unisono.horovod._impl.keras.gradient_groups import Groups
from unisono.horovod._impl.tensorflow import operations
from unisono.horovod._impl.tensorflow.error_names import by_either_name
from unisono.horovod._impl.tensorflow.operation_names import name_for
from unisono.horovod._impl.tensorflow.rank_queries import size_op
from unisono.horovod._impl.tensorflow.sparse_slices import gather_slices
from unisono.horovod._impl.torch.submission import Average


@dataclass
class Reduction:
    """The reduction of the gradients of one tape or optimiser."""

    title: str
    compression: type[Compressor]
    sparse_as_dense: bool
    op: int
    predivide: float
    groups: Groups
    process_set: ProcessSet
    scale_local: bool
    device_dense: str = ""
    device_sparse: str = ""
    local: set[int] = field(default_factory=set)
    """Variables, by identity, that belong to this rank alone."""
    kept: list[Any] = field(default_factory=list)
    """The same, so that their identity stays theirs."""

    def __post_init__(self) -> None:
        if self.predivide != 1.0 and self.op != Average:
            raise ValueError(f"gradient_predivide_factor is for op=hvd.Average only; received op={self.op!r}")

    def keep_local(self, variable: Any) -> None:
        """Leaves the gradient of this variable unreduced. Local."""
        self.local.add(id(variable))
        self.kept.append(variable)

    def is_local(self, variable: Any) -> bool:
        """Whether the gradient of a variable stays unreduced."""
        return id(variable) in self.local

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns the reduced gradients in the same order; None stays None. Collective over the set, blocking when run."""
        if not self.process_set.included():
            return list(gradients)
        found = list(gradients)
        for position, one in enumerate(found):
            if self.sparse_as_dense and isinstance(one, tf.IndexedSlices):
                found[position] = tf.convert_to_tensor(one)
        ours = [position for position, one in enumerate(found) if one is not None and not self.is_local(variables[position])]
        sparse = [position for position in ours if isinstance(found[position], tf.IndexedSlices)]
        dense = [position for position in ours if position not in sparse]
        if self.groups is None:
            self._reduce(found, dense, grouped=False)
        else:
            for group in self._groups_of(dense, variables):
                self._reduce(found, group, grouped=True)
        if sparse:
            with tf.device(self.device_sparse or None):
                slices = gather_slices(
                    [found[position] for position in sparse],
                    self.op,
                    1.0,
                    1.0,
                    f"{self.title}_Allreduce/slices",
                    self.process_set,
                    True,
                )
            for position, one in zip(sparse, slices, strict=True):
                found[position] = one
        if self.scale_local:
            for position, one in enumerate(found):
                if one is not None and self.is_local(variables[position]):
                    found[position] = _divided_by(one, size_op(self.process_set.process_set_id or 0))
        return found

    def _reduce(self, found: list[Any], positions: Sequence[int], grouped: bool) -> None:
        """Replaces the gradients at these positions of the list by their reductions; `grouped`: as one operation."""
        if not positions:
            return
        before, after = (1.0 / self.predivide, self.predivide) if self.op == Average else (1.0, 1.0)
        with tf.device(self.device_dense or None), by_either_name():
            pairs = [self.compression.compress(found[position]) for position in positions]
            names = [
                name_for("Allreduce", f"{self.title}_Allreduce/grad_{position}", None, ignore_name_scope=True)
                for position in (positions[:1] if grouped else positions)
            ]
            smalls = [small for small, _ in pairs]
            reduced = operations.allreduce(smalls, names, self.op, before, after, self.process_set, grouped)
            for position, one, (_, undo) in zip(positions, reduced, pairs, strict=True):
                found[position] = self.compression.decompress(one, undo)

    def _groups_of(self, positions: Sequence[int], variables: Sequence[Any]) -> list[list[int]]:
        """The groups of gradients that are reduced together; variables in no group are reduced alone."""
        if isinstance(self.groups, int):
            count = min(self.groups, len(positions))
            bounds = [len(positions) * part // count for part in range(count + 1)] if count else []
            return [list(positions[begin:end]) for begin, end in pairwise(bounds)]
        where = {id(variables[position]): position for position in positions}
        groups = [[where.pop(id(one)) for one in group if id(one) in where] for group in self.groups or ()]
        return [group for group in groups if group] + [[position] for position in where.values()]


def _divided_by(gradient: Any, size: Any) -> Any:
    """Returns a gradient, dense or of some rows, divided by `size`."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_divided_by(gradient.values, size), gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(size, gradient.dtype)


def local_variables(layers: Any) -> Iterable[Any]:
    """Returns the trainable variables of one Keras layer or of several. Local."""
    held = [] if layers is None else [layers] if hasattr(layers, "trainable_weights") else list(layers)
    for layer in held:
        if not hasattr(layer, "trainable_weights"):
            raise ValueError(f"local_layers must be layers of Keras; received a {type(layer).__name__}")
    return [one for layer in held for one in layer.trainable_weights]

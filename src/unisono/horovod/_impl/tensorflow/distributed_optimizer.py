"""Optimisers whose gradients are reduced over the ranks: those of TensorFlow 1 here, those of Keras with `horovod.keras`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from unisono.horovod._impl.compressor import Compressor
from unisono.horovod._impl.job.process_sets import ProcessSet, global_process_set
from unisono.horovod._impl.keras.gradient_groups import Groups, check_groups
from unisono.horovod._impl.tensorflow import operations
from unisono.horovod._impl.tensorflow.compression import Compression
from unisono.horovod._impl.tensorflow.function_tracing import without_autograph
from unisono.horovod._impl.tensorflow.gradient_accumulation import Accumulation
from unisono.horovod._impl.tensorflow.gradient_reduction import Reduction
from unisono.horovod._impl.tensorflow.operation_names import name_for
from unisono.horovod._impl.torch.submission import Adasum, Average


@without_autograph
def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns an optimiser like the given one, whose computation of gradients is collective. Local."""
    groups = check_groups(num_groups, groups)
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _keras_optimizer(
            optimizer,
            name=name,
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            op=op,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step must be 1 or more; received {backward_passes_per_step}")
    reduction = Reduction(
        title=name or f"Distributed{type(optimizer).__name__}",
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        predivide=gradient_predivide_factor,
        groups=groups,
        process_set=process_set,
        scale_local=scale_local_gradients,
        device_dense=device_dense,
        device_sparse=device_sparse,
    )
    if op == Adasum:
        if backward_passes_per_step > 1 or average_aggregated_gradients:
            raise ValueError(
                "op=hvd.Adasum combines the updates of the optimizer, not the gradients of several batches; leave out "
                "backward_passes_per_step and average_aggregated_gradients"
            )
        return _AdasumOptimizer(optimizer, reduction, use_locking)
    accumulation = None
    if backward_passes_per_step > 1:
        if tf.executing_eagerly():
            raise ValueError(
                "backward_passes_per_step > 1 with an optimizer of tf.compat.v1 needs a graph, and TensorFlow runs eagerly; "
                "use an optimizer of Keras"
            )
        accumulation = Accumulation(backward_passes_per_step, average_aggregated_gradients, reduction)
    return _DistributedOptimizer(optimizer, reduction, accumulation, use_locking)


def _keras_optimizer(optimizer: Any, **options: Any) -> Any:
    """Returns the distributed optimiser for one of Keras; `ValueError` for Adasum, which it does not know."""
    if options["op"] == Adasum:
        raise ValueError("op=hvd.Adasum is not possible with Keras optimizers; give op=hvd.Average or op=hvd.Sum")
    from unisono.horovod._impl.keras.distributed_optimizer import DistributedOptimizer as OfKeras

    return OfKeras(optimizer, **options)


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """An optimiser that reduces gradients as soon as they are computed; the given optimiser does the rest."""

    def __init__(self, optimizer: Any, reduction: Reduction, accumulation: Accumulation | None, use_locking: bool) -> None:
        super().__init__(name=reduction.title, use_locking=use_locking)
        self._optimizer = optimizer
        self._reduction = reduction
        self._accumulation = accumulation

    def register_local_var(self, var: Any) -> None:
        """Leaves the gradient of this variable unreduced. Local."""
        self._reduction.keep_local(var)

    @without_autograph
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Computes and reduces the gradients. Collective over the set, blocking when run."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        reduce = self._reduction if self._accumulation is None else self._accumulation.add
        return list(zip(reduce(gradients, variables), variables, strict=True))

    @without_autograph
    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Updates the variables. Local."""
        pairs = list(grads_and_vars)

        def apply() -> Any:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        return apply() if self._accumulation is None else self._accumulation.apply_if_last(apply, [one for one, _ in pairs])

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the slot of the given optimiser."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the names of the given optimiser's slots."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the variables of the given optimiser."""
        return self._optimizer.variables(*args, **kwargs)


class _AdasumOptimizer(_DistributedOptimizer):
    """An optimiser with which each rank makes its own step; the changes are combined by Adasum."""

    def __init__(self, optimizer: Any, reduction: Reduction, use_locking: bool) -> None:
        super().__init__(optimizer, reduction, None, use_locking)

    @without_autograph
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Computes the gradients of this rank. Local."""
        pairs: list[tuple[Any, Any]] = self._optimizer.compute_gradients(*args, **kwargs)
        return pairs

    @without_autograph
    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Updates the variables and combines the changes of all ranks. Collective over the set, blocking when run."""
        pairs = list(grads_and_vars)
        moved = [variable for gradient, variable in pairs if gradient is not None]
        before = [tf.identity(variable.read_value()) for variable in moved]
        with tf.control_dependencies(before):
            stepped = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        how = self._reduction
        with tf.control_dependencies([] if stepped is None else [stepped]):
            packed = [how.compression.compress(one.read_value() - old) for one, old in zip(moved, before, strict=True)]
            names = [name_for("Adasum", f"{how.title}/delta_{position}", None, True) for position in range(len(moved))]
            smalls = [small for small, _ in packed]
            found = operations.allreduce(smalls, names, Adasum, 1.0, 1.0, how.process_set)
            deltas = [how.compression.decompress(one, undo) for one, (_, undo) in zip(found, packed, strict=True)]
            return tf.group(*[one.assign(old + delta) for one, old, delta in zip(moved, before, deltas, strict=True)])

"""A `tf.GradientTape` whose gradients are reduced over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from unisono.horovod._impl.compressor import Compressor
from unisono.horovod._impl.job.process_sets import ProcessSet, global_process_set
from unisono.horovod._impl.keras.gradient_groups import Groups, check_groups
from unisono.horovod._impl.tensorflow.compression import Compression
from unisono.horovod._impl.tensorflow.function_tracing import without_autograph
from unisono.horovod._impl.tensorflow.gradient_reduction import Reduction, local_variables
from unisono.horovod._impl.torch.submission import Average


class _Reducing:
    """The methods that a distributed tape adds to its class."""

    _reduction: Reduction

    @without_autograph
    def register_local_source(self, source: Any) -> None:
        """Leaves the gradient of this variable unreduced. Local."""
        self._reduction.keep_local(source)

    @without_autograph
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,  # noqa: ARG002 -- names are generic always
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Returns the gradients as `tf.GradientTape.gradient` does, reduced. Collective over the set, blocking when run."""
        local = super().gradient(target, sources, output_gradients, unconnected_gradients)  # type: ignore[misc]
        flat_sources = tf.nest.flatten(sources)
        flat = tf.nest.flatten(local, expand_composites=False)
        return tf.nest.pack_sequence_as(local, self._reduction(flat, flat_sources))

    @without_autograph
    def get_local_and_global_gradients(
        self, target: Any, sources: Sequence[Any], output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Returns pairs of variable and gradient: those of local variables, and those that were reduced. Collective over the
        set."""
        pairs = list(zip(sources, self.gradient(target, sources, output_gradients, use_generic_names), strict=True))
        return (
            [pair for pair in pairs if self._reduction.is_local(pair[0])],
            [pair for pair in pairs if not self._reduction.is_local(pair[0])],
        )


@without_autograph
def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns a tape of the same class with the same record, whose `gradient` is collective. Local."""
    reduction = Reduction(
        title="DistributedGradientTape",
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        predivide=gradient_predivide_factor,
        groups=check_groups(num_groups, groups),
        process_set=process_set,
        scale_local=scale_local_gradients,
        device_dense=device_dense,
        device_sparse=device_sparse,
    )
    kind = type(gradtape)
    tape: Any = object.__new__(type(kind.__name__, (_Reducing, kind), {}))
    tape.__dict__.update(gradtape.__dict__)
    tape._recording = False  # the given one ends its own recording
    tape._reduction = reduction
    return tape


@without_autograph
def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns a distributed tape that leaves the gradients of `local_layers` unreduced. Local."""
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for variable in local_variables(local_layers):
        tape.register_local_source(variable)
    return tape

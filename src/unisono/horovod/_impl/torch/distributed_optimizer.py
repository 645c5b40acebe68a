"""DistributedOptimizer: an optimiser of the user's class that makes the steps of all ranks together."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from unisono.horovod._impl.compressor import Compressor
from unisono.horovod._impl.job.persistent_ids import PersistentId
from unisono.horovod._impl.job.process_sets import ProcessSet, global_process_set
from unisono.horovod._impl.torch.adasum_optimizer import DeltaSteps
from unisono.horovod._impl.torch.compression import Compression
from unisono.horovod._impl.torch.gradient_names import Groups, parameter_groups, parameter_names
from unisono.horovod._impl.torch.gradient_transport import GradientTransport
from unisono.horovod._impl.torch.reduced_optimizer import _DistributedOptimizer, check_passes
from unisono.horovod._impl.torch.submission import Adasum, Average, Sum
from unisono.optim.wrapped_optimizer import Wrapped, same_class


def DistributedOptimizer(
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns an optimiser of the same class and state, whose `step` is collective over the process set and blocking. Local.

    Each one has a name space of its own, in the order in which they are made; so ranks make them in the same order.
    """
    if not isinstance(optimizer, Optimizer):
        raise ValueError(
            f"optimizer must be a torch.optim.Optimizer; received a {type(optimizer).__name__}, which is not derived from it"
        )
    if op not in (Average, Sum, Adasum):
        raise ValueError(f"op must be hvd.Average, hvd.Sum or hvd.Adasum for an optimizer; received {op!r}")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError(f"gradient_predivide_factor is for op=hvd.Average only; received {gradient_predivide_factor} with op={op}")
    if isinstance(optimizer, Wrapped):
        raise ValueError("the optimizer is already a DistributedOptimizer; pass the original optimizer")
    check_passes(backward_passes_per_step)
    if num_groups:
        warnings.warn("num_groups= is deprecated; give groups=", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    names = parameter_names(optimizer.param_groups, named_parameters)
    together = parameter_groups([one for one in names if one.requires_grad], groups)
    if op == Adasum:
        if process_set is not global_process_set:
            raise ValueError("op=hvd.Adasum works on the global process set only; leave process_set out")
        if together or sparse_as_dense:
            raise ValueError(
                "with op=hvd.Adasum the ranks exchange updates and not gradients; leave groups and sparse_as_dense out"
            )
        adasum = same_class(optimizer, DeltaSteps)
        adasum._begin_deltas(names, compression, backward_passes_per_step)
        return adasum
    distributed = same_class(optimizer, _DistributedOptimizer)
    title = PersistentId("optimizer", process_set, owner=distributed)
    transport = GradientTransport(compression, op, gradient_predivide_factor, sparse_as_dense, process_set, title)
    distributed._begin_reductions(names, transport, backward_passes_per_step, together)
    return distributed

"""Functions of `horovod.keras` whose positional arguments differ from those of `horovod.tensorflow.keras`. Local."""

from __future__ import annotations

from typing import Any

from unisono.horovod._impl.compressor import Compressor
from unisono.horovod._impl.job.process_sets import ProcessSet, global_process_set
from unisono.horovod._impl.keras.compression import Compression
from unisono.horovod._impl.keras.distributed_optimizer import DistributedOptimizer as InOrderOfTensorFlow
from unisono.horovod._impl.keras.distributed_optimizer import PartialDistributedOptimizer as PartialInOrderOfTensorFlow
from unisono.horovod._impl.keras.gradient_groups import Groups
from unisono.horovod._impl.torch.submission import Average


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Groups = None,
    **others: Any,
) -> Any:
    """See `distributed_optimizer.py`; `others` are arguments that Horovod has in `horovod.tensorflow.keras` only. Local."""
    return InOrderOfTensorFlow(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        num_groups=num_groups,
        groups=groups,
        **others,
    )


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    **others: Any,
) -> Any:
    """See `distributed_optimizer.py`; `others` are arguments that Horovod has in `horovod.tensorflow.keras` only. Local."""
    return PartialInOrderOfTensorFlow(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        groups=groups,
        process_set=process_set,
        local_layers=local_layers,
        scale_local_gradients=scale_local_gradients,
        **others,
    )

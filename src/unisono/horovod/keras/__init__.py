"""What `import horovod.keras as hvd` gives, with Keras 3 on any of its backends.

import unisono.horovod.keras as hvd

hvd.init()
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))
model.compile(optimizer, loss)
model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()])
"""

from importlib import import_module
from typing import Any

from unisono.horovod._impl.exceptions import HorovodInternalError
from unisono.horovod._impl.job.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from unisono.horovod._impl.job.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from unisono.horovod._impl.keras.argument_order import DistributedOptimizer, PartialDistributedOptimizer
from unisono.horovod._impl.keras.compression import Compression
from unisono.horovod._impl.keras.old_names import init
from unisono.horovod._impl.keras.replicas import broadcast_global_variables, broadcast_variables
from unisono.horovod._impl.keras.saved_models import load_model
from unisono.horovod._impl.keras.value_operations import allgather, allreduce, broadcast, reducescatter
from unisono.horovod._impl.torch.object_exchange import allgather_object, broadcast_object
from unisono.horovod._impl.torch.submission import Adasum, Average, Sum

__all__ = [
    "init",
    "start_timeline",
    "stop_timeline",
    "shutdown",
    "is_initialized",
    "rank",
    "size",
    "local_rank",
    "local_size",
    "cross_rank",
    "cross_size",
    "is_homogeneous",
    "mpi_threads_supported",
    "mpi_enabled",
    "mpi_built",
    "gloo_enabled",
    "gloo_built",
    "nccl_built",
    "ddl_built",
    "ccl_built",
    "cuda_built",
    "rocm_built",
    "Average",
    "Sum",
    "Adasum",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allreduce",
    "allgather",
    "broadcast",
    "reducescatter",
    "broadcast_object",
    "allgather_object",
    "broadcast_variables",
    "broadcast_global_variables",
    "load_model",
    "ProcessSet",
    "global_process_set",
    "add_process_set",
    "remove_process_set",
    "HorovodInternalError",
]


def __getattr__(name: str) -> Any:
    """Keras itself is imported with the first callback, not before the program does."""
    if name in ("callbacks", "elastic"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

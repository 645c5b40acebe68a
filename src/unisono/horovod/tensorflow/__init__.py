"""What `import horovod.tensorflow as hvd` gives.

import tensorflow as tf
import unisono.horovod.tensorflow as hvd

hvd.init()
tape = hvd.DistributedGradientTape(tape)
hvd.broadcast_variables(model.variables, root_rank=0)

Names are looked up at use, so that `horovod.tensorflow.keras` also works where Keras runs without TensorFlow.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

_BASICS = """shutdown is_initialized rank size local_rank local_size cross_rank cross_size is_homogeneous mpi_threads_supported
mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built rocm_built
start_timeline stop_timeline"""

_HOLDERS: Mapping[str, str] = {
    "job.basics": _BASICS,
    "exceptions": "HorovodInternalError",
    "common_functions": "check_extension gpu_available",
    "tensorflow.old_names": "init",
    "job.process_sets": "ProcessSet global_process_set add_process_set remove_process_set",
    "torch.submission": "Average Sum Adasum Min Max Product",
    "torch.operations": "barrier",
    "tensorflow.blocking_calls": """allreduce grouped_allreduce allgather grouped_allgather broadcast alltoall reducescatter
    grouped_reducescatter join""",
    "tensorflow.rank_queries": "rank_op local_rank_op size_op local_size_op process_set_included_op",
    "tensorflow.variable_broadcast": "broadcast_ broadcast_variables broadcast_global_variables BroadcastGlobalVariablesHook",
    "tensorflow.object_exchange": "broadcast_object broadcast_object_fn allgather_object",
    "tensorflow.compression": "Compression",
    "tensorflow.gradient_tape": "DistributedGradientTape PartialDistributedGradientTape",
    "tensorflow.distributed_optimizer": "DistributedOptimizer",
    "tensorflow.sync_batch_norm": "SyncBatchNormalization",
}
"""Module under `unisono.horovod._impl` -> the names that it holds."""

_WHERE: Mapping[str, str] = {name: module for module, names in _HOLDERS.items() for name in names.split()}
_PRIVATE: Mapping[str, str] = {"check_num_rank_power_of_2": "mpi_ops", "_executing_eagerly": "util"}
"""Names that programs find here without being told of them -> the module that has them."""
_MODULES = ("compression", "elastic", "functions", "mpi_ops", "sync_batch_norm", "util")

__all__ = [*_WHERE, "elastic"]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"unisono.horovod._impl.{_WHERE[name]}"), name)
    if name in _PRIVATE:
        return getattr(importlib.import_module(f"{__name__}.{_PRIVATE[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})

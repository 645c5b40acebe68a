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
    "basics": _BASICS,
    "exceptions": "HorovodInternalError",
    "small_functions": "check_extension gpu_available",
    "tensorflow.old_names": "init",
    "process_sets": "ProcessSet global_process_set add_process_set remove_process_set",
    "torch.submit": "Average Sum Adasum Min Max Product",
    "torch.operations": "barrier",
    "tensorflow.calls": """allreduce grouped_allreduce allgather grouped_allgather broadcast alltoall reducescatter
    grouped_reducescatter join""",
    "tensorflow.queries": "rank_op local_rank_op size_op local_size_op process_set_included_op",
    "tensorflow.variables": "broadcast_ broadcast_variables broadcast_global_variables BroadcastGlobalVariablesHook",
    "tensorflow.objects": "broadcast_object broadcast_object_fn allgather_object",
    "tensorflow.compression": "Compression",
    "tensorflow.tape": "DistributedGradientTape PartialDistributedGradientTape",
    "tensorflow.optimizer": "DistributedOptimizer",
    "tensorflow.sync_batch_norm": "SyncBatchNormalization",
}
"""Module under `unisono.compat.horovod` -> the names that it holds."""

_WHERE: Mapping[str, str] = {name: module for module, names in _HOLDERS.items() for name in names.split()}
_PRIVATE: Mapping[str, str] = {"check_num_rank_power_of_2": "mpi_ops", "_executing_eagerly": "util"}
"""Names that programs find here without being told of them -> the module that has them."""
_MODULES = ("compression", "elastic", "functions", "mpi_ops", "sync_batch_norm", "util")

__all__ = [*_WHERE, "elastic"]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"unisono.compat.horovod.{_WHERE[name]}"), name)
    if name in _PRIVATE:
        return getattr(importlib.import_module(f"{__name__}.{_PRIVATE[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})

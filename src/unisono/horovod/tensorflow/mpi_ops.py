"""What `horovod.tensorflow.mpi_ops` gives: the operations and who is there."""

from unisono.horovod._impl.common_functions import gpu_available, num_rank_is_power_2
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
from unisono.horovod._impl.tensorflow.blocking_calls import allgather, alltoall, broadcast, grouped_allgather, join
from unisono.horovod._impl.tensorflow.old_names import init
from unisono.horovod._impl.tensorflow.rank_queries import (
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from unisono.horovod._impl.tensorflow.variable_broadcast import broadcast_
from unisono.horovod._impl.torch.submission import Adasum, Average, Max, Min, Product, Sum

check_num_rank_power_of_2 = num_rank_is_power_2

__all__ = [
    "init",
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
    "gpu_available",
    "num_rank_is_power_2",
    "check_num_rank_power_of_2",
    "start_timeline",
    "stop_timeline",
    "Average",
    "Sum",
    "Adasum",
    "Min",
    "Max",
    "Product",
    "allgather",
    "grouped_allgather",
    "broadcast",
    "broadcast_",
    "alltoall",
    "join",
    "rank_op",
    "local_rank_op",
    "size_op",
    "local_size_op",
    "process_set_included_op",
    "ProcessSet",
    "global_process_set",
    "add_process_set",
    "remove_process_set",
]

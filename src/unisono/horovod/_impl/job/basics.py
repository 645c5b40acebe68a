"""The rank and size of this process and what Horovod supports, in the words of programs written for Horovod. Local, unless a line
says otherwise."""

from __future__ import annotations

import torch

from unisono.horovod._impl.job.process_state import PROCESS
from unisono.horovod._impl.job.process_topology import mpi_is_installed

__all__ = ["shutdown", "is_initialized", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "is_homogeneous"]
__all__ += ["mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built", "nccl_built", "ddl_built"]
__all__ += ["ccl_built", "cuda_built", "rocm_built", "start_timeline", "stop_timeline"]


def shutdown() -> None:
    """Ends the communication; operations in flight fail. `init` may follow. Local, blocking for a moment."""
    PROCESS.end()


def is_initialized() -> bool:
    """Whether `init` was called, without a `shutdown` since."""
    return PROCESS.has_begun


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Makes rank 0 write its timeline to this file from now on. Needs HOROVOD_TIMELINE=DYNAMIC at `init`, else `ValueError`.
    Local."""
    PROCESS.job.timeline.start(file_path, mark_cycles)


def stop_timeline() -> None:
    """Ends the timeline; it may be started again. Local, blocking until the file is written."""
    PROCESS.job.timeline.stop()


def rank() -> int:
    """The rank of this process in the job."""
    return PROCESS.topology.rank


def size() -> int:
    """Number of processes of the job."""
    return PROCESS.topology.size


def local_rank() -> int:
    """The rank among the processes of this node."""
    return PROCESS.topology.local_rank


def local_size() -> int:
    """Number of processes of this node."""
    return PROCESS.topology.local_size


def cross_rank() -> int:
    """The rank among the processes of all nodes that have this local rank."""
    return PROCESS.topology.cross_rank


def cross_size() -> int:
    """Number of nodes that have a process of this local rank."""
    return PROCESS.topology.cross_size


def is_homogeneous() -> bool:
    """Whether all nodes have equally many processes."""
    return PROCESS.topology.is_homogeneous


def mpi_enabled() -> bool:
    """Whether MPI carries the tensors."""
    return PROCESS.topology.engine == "mpi"


def mpi_threads_supported() -> bool:
    """Whether MPI carries the tensors and may be called by any thread."""
    if not mpi_enabled():
        return False
    from unisono.comm.engines.mpi import load

    return load().any_thread


def mpi_built() -> bool:
    """Whether MPI could carry the tensors."""
    return mpi_is_installed()


def gloo_enabled() -> bool:
    """Whether something else than MPI carries the tensors: gloo between nodes, shared memory within one."""
    return not mpi_enabled()


def gloo_built() -> bool:
    """Whether this PyTorch has gloo."""
    return torch.distributed.is_available() and torch.distributed.is_gloo_available()


def nccl_built() -> int:
    """Returns 0: tensors of GPUs pass through the host."""
    return 0


def cuda_built() -> bool:
    """Whether this PyTorch knows CUDA."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Whether this PyTorch knows ROCm."""
    return torch.version.hip is not None


def ddl_built() -> bool:
    """Returns False: there is no DDL here."""
    return False


def ccl_built() -> bool:
    """Returns False: there is no oneCCL here."""
    return False

"""The functions of `basics.py` as methods of one object, as some programs hold them. Local, unless the function of that name says
otherwise."""

from __future__ import annotations

from unisono.horovod._impl.engine.operation_request import ReduceOp
from unisono.horovod._impl.job import basics, process_sets
from unisono.horovod._impl.job.process_state import PROCESS


class HorovodBasics:
    """The basics as methods. Its arguments name a compiled library, which does not exist here."""

    def __init__(self, pkg_path: str = "", *args: str) -> None:
        self._given = pkg_path, *args

    Average, Sum, Adasum, Min, Max, Product = (int(op) for op in ReduceOp)

    init = staticmethod(process_sets.init)
    shutdown = staticmethod(basics.shutdown)
    is_initialized = staticmethod(basics.is_initialized)
    rank = staticmethod(basics.rank)
    size = staticmethod(basics.size)
    local_rank = staticmethod(basics.local_rank)
    local_size = staticmethod(basics.local_size)
    cross_rank = staticmethod(basics.cross_rank)
    cross_size = staticmethod(basics.cross_size)
    is_homogeneous = staticmethod(basics.is_homogeneous)
    mpi_threads_supported = staticmethod(basics.mpi_threads_supported)
    mpi_enabled = staticmethod(basics.mpi_enabled)
    mpi_built = staticmethod(basics.mpi_built)
    gloo_enabled = staticmethod(basics.gloo_enabled)
    gloo_built = staticmethod(basics.gloo_built)
    nccl_built = staticmethod(basics.nccl_built)
    ddl_built = staticmethod(basics.ddl_built)
    ccl_built = staticmethod(basics.ccl_built)
    cuda_built = staticmethod(basics.cuda_built)
    rocm_built = staticmethod(basics.rocm_built)
    start_timeline = staticmethod(basics.start_timeline)
    stop_timeline = staticmethod(basics.stop_timeline)

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        """Returns the ranks of every registered process set, by its number. Local."""
        return PROCESS.sets()

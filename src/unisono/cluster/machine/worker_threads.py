"""Sets the number of threads of this worker. Without a limit each of many workers would have as many threads as there are CPUs."""

from __future__ import annotations

import os

from unisono.cluster.machine.affinity import available_cpus, threads_per_worker
from unisono.cluster.resolve import current_topology


def set_threads(requested: int | None = None) -> int:
    """Local: sets, and returns, the number of PyTorch's threads: the requested one, that of OMP_NUM_THREADS, or this worker's
    part of the CPUs."""
    import torch

    if requested is None and os.environ.get("OMP_NUM_THREADS"):
        return torch.get_num_threads()  # PyTorch has read it
    count = requested if requested is not None else threads_per_worker(_num_sharing_workers())
    torch.set_num_threads(count)
    return count


def threads_from_environment() -> int | None:
    """Local: returns the number in OMP_NUM_THREADS; None where it is not set."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(first) if first.isdigit() and int(first) else None


def _num_sharing_workers() -> int:
    """Returns the number of workers that share our CPUs: all of this node, or 1 where the launcher bound us to a part of them."""
    local_size = current_topology().local_size
    return 1 if len(available_cpus()) < (os.cpu_count() or 1) else local_size

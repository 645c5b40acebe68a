"""Threads of this worker. A launcher that says nothing leaves each of many workers with as many threads as there are CPUs."""

from __future__ import annotations

import os

from unisono.cluster.affinity import cpus, threads_per_worker
from unisono.cluster.resolve import here


def set_threads(asked: int | None = None) -> int:
    """Local: PyTorch uses so many threads: what is asked for, what OMP_NUM_THREADS says, or this worker's part of the CPUs."""
    import torch

    if asked is None and os.environ.get("OMP_NUM_THREADS"):
        return torch.get_num_threads()  # PyTorch has read it
    count = asked if asked is not None else threads_per_worker(_sharers())
    torch.set_num_threads(count)
    return count


def threads_told() -> int | None:
    """Local: what OMP_NUM_THREADS says, also to a process whose parent has told PyTorch otherwise; None where it says nothing."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(first) if first.isdigit() and int(first) else None


def _sharers() -> int:
    """Workers that share our CPUs: all of this node, or we alone where the launcher bound us to a part of them."""
    local_size = here().local_size
    return 1 if len(cpus()) < (os.cpu_count() or 1) else local_size

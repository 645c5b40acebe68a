"""A rank of an all-reduce, without wrappers: `... SOCKET GROUP mpi`, `... SOCKET GROUP RANK SIZE STORE` for gloo, or, started by
`unisono run`, `... SOCKET GROUP mapped|plain`. Each imports its own library alone, as each has its own environment.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import numpy as np

from bench.ranks.reducing import Floats, Reducing
from bench.ranks.slot import attend


def by_mpi() -> None:
    """Any MPI: mpi4py's blocking Allreduce, in place, on a numpy array."""
    import mpi4py
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def allocate(numel: int) -> tuple[list[object], Floats]:
        array = np.empty(numel, np.float32)
        return [array, MPI.FLOAT], array

    def reduce(buffer: list[object]) -> None:
        world.Allreduce(MPI.IN_PLACE, buffer, MPI.SUM)

    library = " ".join(MPI.Get_library_version().split("\n")[0].split(",")[0].split())
    versions = {"MPI": library.rstrip("\0"), "mpi4py": mpi4py.__version__, "numpy": np.__version__}
    attend(world.rank, world.size, versions, Reducing(world.rank, world.size, allocate, reduce).actions())


def by_gloo(rank: int, size: int, store: str) -> None:
    """The process group of PyTorch itself."""
    import torch
    import torch.distributed

    dist: Any = torch.distributed  # its stubs lack what is used here
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=300)
    group = dist.ProcessGroupGloo(dist.FileStore(store, size), rank, size, options)

    def allocate(numel: int) -> tuple[list[torch.Tensor], Floats]:
        buffer = torch.empty(numel)
        return [buffer], buffer.numpy()

    def reduce(buffers: list[torch.Tensor]) -> None:
        group.allreduce(buffers).wait()

    attend(group.rank(), group.size(), {"torch": torch.__version__}, Reducing(rank, size, allocate, reduce).actions())


def by_unisono(is_mapped: bool) -> None:
    """Any engine and algorithm of ours, on a buffer from the communicator or on an ordinary tensor."""
    import torch

    import unisono as un

    with un.connect(quiet=True) as comm:

        def allocate(numel: int) -> tuple[torch.Tensor, Floats]:
            buffer = comm.empty(numel) if is_mapped else torch.empty(numel)
            return buffer, buffer.numpy()

        versions = {"unisono": un.__version__, "torch": torch.__version__, "how": comm.origin}
        attend(comm.rank, comm.size, versions, Reducing(comm.rank, comm.size, allocate, comm.allreduce).actions())


if __name__ == "__main__":
    if sys.argv[3] == "mpi":
        by_mpi()
    elif sys.argv[3] in ("mapped", "plain"):
        by_unisono(sys.argv[3] == "mapped")
    else:
        by_gloo(int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])

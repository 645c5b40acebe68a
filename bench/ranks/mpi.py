"""A rank of any MPI: mpi4py's blocking Allreduce, in place, on a numpy array."""

from __future__ import annotations

import numpy as np

from bench.ranks.reducing import Floats, Reducing
from bench.ranks.seat import attend


def main() -> None:
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


if __name__ == "__main__":
    main()

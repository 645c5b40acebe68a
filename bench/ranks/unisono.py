"""A rank of Unisono, started by `unisono run`, which also says the engine and the algorithm: `... SOCKET GROUP mapped|plain`."""

from __future__ import annotations

import sys

import torch

import unisono as un
from bench.ranks.reducing import Floats, Reducing
from bench.ranks.seat import attend


def main() -> None:
    with un.connect(quiet=True) as comm:

        def mapped(numel: int) -> tuple[torch.Tensor, Floats]:
            buffer = comm.empty(numel)
            return buffer, buffer.numpy()

        def plain(numel: int) -> tuple[torch.Tensor, Floats]:
            buffer = torch.empty(numel)
            return buffer, buffer.numpy()

        allocate = {"mapped": mapped, "plain": plain}[sys.argv[3]]
        versions = {"unisono": un.__version__, "torch": torch.__version__, "how": comm.origin}
        attend(comm.rank, comm.size, versions, Reducing(comm.rank, comm.size, allocate, comm.allreduce).actions())


if __name__ == "__main__":
    main()

"""A rank of gloo: the process group of PyTorch itself, without wrappers of its own or ours: `... SOCKET GROUP RANK SIZE STORE`."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from bench.ranks.reducing import Floats, Reducing
from bench.ranks.seat import attend

dist: Any = torch.distributed  # its stubs lack what is used here


def main() -> None:
    rank, size, store = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
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


if __name__ == "__main__":
    main()

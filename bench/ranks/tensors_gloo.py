"""Many tensors summed by gloo, one call for each, blocking or all in flight: `... SOCKET GROUP RANK SIZE STORE NUM HOW`."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed

from bench.ranks.many_tensors import cut
from bench.ranks.reducing import Reducing
from bench.ranks.seat import attend

dist: Any = torch.distributed  # its stubs lack what is used here


def main() -> None:
    rank, size, store, num_tensors, how = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], int(sys.argv[6]), sys.argv[7]
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)

    def one_by_one(tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            dist.all_reduce(tensor)

    def in_flight(tensors: list[torch.Tensor]) -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    reduce = {"one by one": one_by_one, "in flight": in_flight}[how]
    reducing = Reducing(rank, size, lambda numel: cut(numel, num_tensors), reduce)
    attend(rank, size, {"torch": torch.__version__}, reducing.actions())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A rank of the obvious parameter server: `send` and `recv` of torch.distributed over gloo: `... SOCKET GROUP RANK SIZE STORE`."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from bench.ranks.serving import Ends, Serving
from bench.ranks.slot import attend

dist: Any = torch.distributed  # its stubs lack what is used here


class GlooEnds(Ends):
    def __init__(self, numel: int) -> None:
        self._received = torch.zeros(numel)

    def call(self, vector: Tensor) -> Tensor:
        dist.send(vector, 0)
        dist.recv(self._received, 0)
        return self._received

    def receive(self) -> tuple[int, Tensor]:
        rank = dist.recv(self._received)  # from any source
        return rank - 1, self._received

    def answer(self, worker: int, centre: Tensor) -> None:
        dist.send(centre, worker + 1)

    def close(self) -> None:
        dist.barrier()


def main() -> None:
    rank, size, store = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size, timeout=timedelta(seconds=300))

    def opened(numel: int) -> tuple[Ends, Tensor]:
        return GlooEnds(numel), torch.empty(numel)

    attend(rank, size, {"torch": torch.__version__}, Serving(rank, size, opened).actions())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

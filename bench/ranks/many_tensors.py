"""Many tensors summed by one call for each: `... SOCKET GROUP NUM_TENSORS`, then what sums them.

`... MODULE`: in flight at once, summed by name, by ours or by Horovod itself. `... RANK SIZE STORE HOW`: by gloo, blocking
(`one by one`) or all `in flight`.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
import torch.distributed

from bench.ranks.reducing import Floats, Reducing
from bench.ranks.slot import attend, version_of

dist: Any = torch.distributed  # its stubs lack what is used here
Tensors = list[torch.Tensor]


def cut(numel: int, num_tensors: int) -> tuple[Tensors, Floats]:
    """Local: a vector cut into tensors of equal length, as the parameters of a model are many, and their memory as one array."""
    whole = torch.empty(numel)
    return list(torch.split(whole, numel // num_tensors)), whole.numpy()


def by_gloo(num_tensors: int, rank: int, size: int, store: str, how: str) -> None:
    """Blocking: serve the conductor."""
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)

    def one_by_one(tensors: Tensors) -> None:
        for tensor in tensors:
            dist.all_reduce(tensor)

    def in_flight(tensors: Tensors) -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    reduce = {"one by one": one_by_one, "in flight": in_flight}[how]
    reducing = Reducing(rank, size, lambda numel: cut(numel, num_tensors), reduce)
    attend(rank, size, {"torch": torch.__version__}, reducing.actions())
    dist.destroy_process_group()


def by_horovod(num_tensors: int, module: str) -> None:
    """Blocking: serve the conductor."""
    hvd: Any = importlib.import_module(module)
    hvd.init()

    def reduce(tensors: Tensors) -> None:
        handles = [hvd.allreduce_async_(tensor, name=f"t{number}", op=hvd.Sum) for number, tensor in enumerate(tensors)]
        for handle in handles:
            hvd.synchronize(handle)

    reducing = Reducing(hvd.rank(), hvd.size(), lambda numel: cut(numel, num_tensors), reduce)
    attend(hvd.rank(), hvd.size(), {"torch": torch.__version__, **version_of(module)}, reducing.actions())
    hvd.shutdown()


if __name__ == "__main__":
    num_tensors, what = int(sys.argv[3]), sys.argv[4:]
    if len(what) == 1:
        by_horovod(num_tensors, what[0])
    else:
        by_gloo(num_tensors, int(what[0]), int(what[1]), what[2], what[3])

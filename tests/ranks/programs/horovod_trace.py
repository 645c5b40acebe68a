"""What a timeline looks on at: `python horovod_trace.py WHAT`, with the settings in the environment."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch

import unisono.horovod.torch as hvd


def step(number: int, indices: Iterable[int] = range(4)) -> None:
    """All-reduces of small tensors, with their results checked."""
    mine = {index: torch.full((50,), float(index + number + hvd.rank())) for index in indices}
    handles = {index: hvd.allreduce_async_(tensor, name=f"t{index}", op=hvd.Sum) for index, tensor in mine.items()}
    for index, handle in handles.items():
        right = hvd.size() * (index + number) + sum(range(hvd.size()))
        assert torch.equal(hvd.synchronize(handle), torch.full((50,), float(right))), (number, index)


def works() -> None:
    """All kinds of operations."""
    for number in range(3):
        step(number)
    hvd.broadcast(torch.ones(2, 3), 0, name="b")
    hvd.allgather(torch.ones(1 + hvd.rank(), 2), name="g")
    for tensor in hvd.grouped_allgather([torch.ones(2), torch.ones(3)], name="gg"):
        assert tensor.sum() > 1
    hvd.alltoall(torch.ones(2 * hvd.size()), name="a")
    hvd.reducescatter(torch.ones(5, 2), name="r")
    with suppress(hvd.HorovodInternalError):
        hvd.allreduce(torch.ones(2 + hvd.rank()), name="differs")
    hvd.barrier()


def starts_and_stops(folder: Path) -> None:
    step(0)
    hvd.start_timeline(str(folder / "first.json"))
    step(1)
    hvd.stop_timeline()
    step(2, range(5))
    hvd.start_timeline(str(folder / "second.json"), mark_cycles=True)
    step(3)
    hvd.stop_timeline()
    hvd.stop_timeline()


def fills_the_disk() -> None:
    """Rank 0 may write no file further than this from now on."""
    step(0)
    if hvd.rank() == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
    for number in range(200):
        step(number)


def runs_until_killed() -> None:
    print(f"rank {hvd.rank()} runs", flush=True)
    number = 0
    while True:
        step(number := number + 1)


if __name__ == "__main__":
    what, *where = sys.argv[1:]
    hvd.init()
    {
        "works": works,
        "starts_and_stops": lambda: starts_and_stops(Path(where[0])),
        "fills_the_disk": fills_the_disk,
        "runs_until_killed": runs_until_killed,
    }[what]()
    hvd.barrier()
    print(f"rank {hvd.rank()} is done", flush=True)
    hvd.shutdown()

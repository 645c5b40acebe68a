"""The program that moves large buffers in every way: `python -m tests.soak.large BYTES [--only NAMES]`, under any launcher."""

from __future__ import annotations

import argparse
import faulthandler
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from unisono.comm.base import MAX, Communicator
from unisono.comm.connect import connect

PERIOD = 8191
"""A prime: no shift by a number of pages goes unseen."""
BLOCK = 1 << 22
TIME_LIMIT_S = 200.0
STUCK_S = 580.0


def filled(buf: Tensor, rank: int) -> Tensor:
    """The numbers of a rank, the same for every length; exact in float32, also summed over ranks. Made in blocks to save memory."""
    for start in range(0, buf.numel(), BLOCK):
        block = buf[start : start + BLOCK]
        block.copy_((torch.arange(start, start + block.numel()) % PERIOD + rank).to(buf.dtype))
    return buf


def expect(buf: Tensor, value: Callable[[Tensor], Tensor], what: str, first: int = 0) -> None:
    """`value` says what stands at the given positions, counted from `first`."""
    for start in range(0, buf.numel(), BLOCK):
        block = buf[start : start + BLOCK]
        wanted = value(torch.arange(first + start, first + start + block.numel())).to(buf.dtype)
        if not torch.equal(block, wanted):
            at = int((block != wanted).nonzero()[0])
            raise AssertionError(f"{what}: {block[at]} at {start + at} of {buf.numel()}, expected {wanted[at]}")


def of(rank: int) -> Callable[[Tensor], Tensor]:
    return lambda position: position % PERIOD + rank


def allreduce_of_mapped(comm: Communicator, numel: int, dtype: torch.dtype) -> None:
    _allreduce(comm, filled(comm.empty(numel, dtype), comm.rank))


def allreduce_of_plain(comm: Communicator, numel: int, dtype: torch.dtype) -> None:
    _allreduce(comm, filled(torch.empty(numel, dtype=dtype), comm.rank))


def started_allreduces(comm: Communicator, numel: int, dtype: torch.dtype) -> None:
    halves = [filled(torch.empty(numel // 2, dtype=dtype), comm.rank) for _ in range(2)]
    for work in [comm.start_allreduce(half, MAX) for half in halves]:
        work.wait()
    for half in halves:
        expect(half, _reduced_max(comm, dtype), "started allreduce")


def broadcast(comm: Communicator, numel: int, dtype: torch.dtype) -> None:
    buf = filled(torch.empty(numel, dtype=dtype), comm.rank)
    comm.broadcast(buf, comm.size - 1)
    expect(buf, of(comm.size - 1), "broadcast")


def allgather(comm: Communicator, numel: int, dtype: torch.dtype) -> None:
    each = numel // comm.size
    out = torch.empty(each * comm.size, dtype=dtype)
    comm.allgather(out, filled(torch.empty(each, dtype=dtype), comm.rank))
    for r in range(comm.size):
        expect(out[r * each : (r + 1) * each], of(r), f"allgather, part of {r}")


def reduce_scatter(comm: Communicator, numel: int, dtype: torch.dtype) -> None:
    counts = [numel // comm.size] * comm.size
    counts[-1] += numel % comm.size
    out = torch.empty(counts[comm.rank], dtype=dtype)
    comm.reduce_scatter(out, filled(torch.empty(numel, dtype=dtype), comm.rank), counts)
    expect(out, _summed(comm), "reduce_scatter", first=sum(counts[: comm.rank]))


def alltoall(comm: Communicator, numel: int, dtype: torch.dtype) -> None:
    each = numel // comm.size
    out = torch.empty(each * comm.size, dtype=dtype)
    comm.alltoall(out, filled(torch.empty(each * comm.size, dtype=dtype), comm.rank))
    for r in range(comm.size):
        expect(out[r * each : (r + 1) * each], of(r), f"alltoall, part of {r}", first=comm.rank * each)


def messages(comm: Communicator, numel: int, dtype: torch.dtype) -> None:
    received = torch.empty(numel, dtype=dtype)
    receive = comm.start_recv(received, (comm.rank - 1) % comm.size)
    comm.send(filled(torch.empty(numel, dtype=dtype), comm.rank), (comm.rank + 1) % comm.size)
    receive.wait()
    expect(received, of((comm.rank - 1) % comm.size), "message")


def _allreduce(comm: Communicator, buf: Tensor) -> None:
    comm.allreduce(buf)
    expect(buf, _summed(comm), "allreduce")


def _summed(comm: Communicator) -> Callable[[Tensor], Tensor]:
    size, ranks = comm.size, sum(range(comm.size))
    return lambda position: position % PERIOD * size + ranks


def _reduced_max(comm: Communicator, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """In a type that cannot hold them the numbers have wrapped before they are compared."""

    def value(position: Tensor) -> Tensor:
        return torch.stack([(position % PERIOD + r).to(dtype) for r in range(comm.size)]).amax(0)

    return value


WAYS: Mapping[str, Callable[[Communicator, int, torch.dtype], None]] = {
    way.__name__: way
    for way in (
        allreduce_of_mapped,
        allreduce_of_plain,
        started_allreduces,
        broadcast,
        allgather,
        reduce_scatter,
        alltoall,
        messages,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.large", description=__doc__)
    parser.add_argument("bytes", type=int)
    parser.add_argument("--dtype", choices=("float32", "float64", "int32", "uint8"), default="float32")
    parser.add_argument("--only", default=",".join(WAYS))
    args = parser.parse_args()
    dtype: torch.dtype = getattr(torch, args.dtype)
    with connect(time_limit_s=TIME_LIMIT_S) as comm:
        for name in args.only.split(","):
            faulthandler.dump_traceback_later(STUCK_S, exit=True)
            WAYS[name](comm, args.bytes // dtype.itemsize, dtype)
            faulthandler.cancel_dump_traceback_later()
            if comm.rank == 0:
                print(f"{name} of {args.bytes} bytes is right", flush=True)


if __name__ == "__main__":
    main()

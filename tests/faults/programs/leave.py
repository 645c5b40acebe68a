"""Rank 0 does its part, closes its communicator and is gone in good order, while rank 2 is late. Argument: what they do.

messages: rank 0 has sent to all, and rank 2 has not begun to receive.
collective: rank 2 has given its own part of an exchange, but has not yet looked for what the others sent.
"""

from __future__ import annotations

import sys
from time import monotonic, sleep
from typing import Any

import torch

import unisono as un
from unisono.comm.control_plane.control import LEFT

LATE = 2
NUMEL = 500
ENOUGH_S = 20.0


def await_leave(comm: un.Communicator) -> None:
    deadline = monotonic() + ENOUGH_S
    while 0 not in comm.control.lost:
        if monotonic() > deadline:
            raise TimeoutError("rank 0 does not leave")
        sleep(0.005)
    assert comm.control.lost[0].reason == LEFT, comm.control.lost


def messages(comm: un.Communicator) -> None:
    if comm.rank == 0:
        for r in range(1, comm.size):
            for number in range(3):
                comm.send(torch.full((NUMEL,), 10.0 * r + number), r)
        return
    if comm.rank == LATE:
        await_leave(comm)
    for number in range(3):
        buf = torch.zeros(NUMEL)
        comm.recv(buf, un.ANY if number == 1 else 0)
        assert (buf == 10.0 * comm.rank + number).all(), buf
    try:
        comm.recv(torch.zeros(NUMEL), 0)
    except un.PeerLost as error:
        assert error.ranks == (0,), error
        print(f"rank {comm.rank} waits for no more: {error}", flush=True)


def collective(comm: un.Communicator) -> None:
    counts = [NUMEL + r for r in range(comm.size)]  # uneven parts go by messages
    if comm.rank == LATE:
        delay_after_last_send(comm)
    out = torch.zeros(sum(counts))
    comm.allgather(out, torch.full((counts[comm.rank],), float(comm.rank)), counts)
    wanted = torch.cat([torch.full((count,), float(r)) for r, count in enumerate(counts)])
    assert torch.equal(out, wanted), out
    if comm.rank == LATE:
        assert 0 in comm.control.lost, "rank 0 has not left before this rank was done: nothing was tested"


def delay_after_last_send(comm: un.Communicator) -> None:
    inner: Any = comm
    start_send, sent = inner._messages.start_send, []

    def counted(*args: Any) -> Any:
        work = start_send(*args)
        sent.append(work)
        if len(sent) == 1 + comm.size - 1:  # what the call is, to one; our part, to each
            await_leave(comm)
        return work

    inner._messages.start_send = counted


def main() -> None:
    with un.connect(quiet=True, time_limit_s=ENOUGH_S) as comm:
        comm.barrier()
        {"messages": messages, "collective": collective}[sys.argv[1]](comm)
        print(f"rank {comm.rank} is done", flush=True)


if __name__ == "__main__":
    main()

"""The exchange over a communicator: one or several servers and their workers, all present from the beginning to the end.

A call is a header (headers.py) and, if there is a vector, a body:

    worker                                   server
    header  ------------------------------>  calls queue in the order of their coming
    body    ------------------------------>  into memory kept for this worker, while others are served
    header  <------------------------------
    body    <------------------------------  from memory kept for this worker, so that the centre may change at once

In shared memory there are neither messages nor copies: headers lie in slots (header_slots.py), and a vector in memory that a worker
has reserved, and its server maps, travels as its place in the header. Vectors elsewhere or too long are messages there too.

A death ends the whole job: both ends raise `PeerLost`, also while they wait for another rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unisono.comm.base import Communicator
from unisono.comm.engines.shm import ShmCommunicator
from unisono.comm.exchange.comm_ends import Link, MessageCaller, MessageServer, WorkerConnection
from unisono.comm.exchange.header_slots import BELL_BYTES, Slot, SlotServerHeaders, SlotWorkerHeaders, slot_bytes
from unisono.comm.exchange.headers import MessageServerHeaders, MessageWorkerHeaders, header_length
from unisono.comm.shared_memory.word import Word
from unisono.errors import UsageError

__all__ = ["MessageCaller", "MessageServer", "open_exchange"]


def open_exchange(
    comm: Communicator, servers: Sequence[int] = (0,), most_numbers: int = 32, mapped_bytes: int = 0
) -> MessageServer | list[MessageCaller]:
    """Collective, blocking: opens the exchange; returns the server's end on the ranks in `servers`, on all others one worker's end
    for each of `servers`, in that order. Workers have their numbers in the order of ranks.

    A tail holds up to `most_numbers`. A worker reserves `mapped_bytes` for the vectors of its requests, and as many for those of
    the answers, to and from each server, where the engine shares memory; elsewhere this has no effect.
    """
    _refuse_unsuited(comm, servers, most_numbers, mapped_bytes)
    link = Link(comm.duplicate())
    try:
        return _open_ends(link, tuple(servers), most_numbers, mapped_bytes)
    except BaseException:
        link.comm.close()
        raise


def _open_ends(link: Link, servers: tuple[int, ...], most_numbers: int, mapped_bytes: int) -> MessageServer | list[MessageCaller]:
    """Collective: checks that all ranks gave the same arguments; returns this rank's server end or its worker ends."""
    comm = link.comm
    agreed = comm.allgather_object([list(servers), most_numbers])
    different = next((rank for rank, other in enumerate(agreed) if other != agreed[0]), None)
    if different is not None:
        raise UsageError(
            f"ranks 0 and {different} of {comm.name} open different exchanges: (servers, most_numbers) are {tuple(agreed[0])} "
            f"and {tuple(agreed[different])}; give all ranks the same"
        )
    workers = [rank for rank in range(comm.size) if rank not in servers]
    length = header_length(most_numbers)
    shared = _share(comm, servers, length, mapped_bytes) if isinstance(comm, ShmCommunicator) else None
    comm.time_limit_s = math.inf  # of messages: they come when a worker has computed, or when the server likes
    if comm.rank in servers:
        if shared is None:
            return MessageServer(
                link, [WorkerConnection(rank, link) for rank in workers], MessageServerHeaders(comm, workers, length)
            )
        place = servers.index(comm.rank)
        connections = [WorkerConnection(rank, link, *shared.vectors[rank][place]) for rank in workers]
        return MessageServer(
            link, connections, SlotServerHeaders([shared.slots[rank][place] for rank in workers], shared.bells[comm.rank])
        )
    link.num_users = len(servers)
    number = workers.index(comm.rank)
    if shared is None:
        return [MessageCaller(link, server, number, MessageWorkerHeaders(comm, server, length)) for server in servers]
    return [
        MessageCaller(
            link,
            server,
            number,
            SlotWorkerHeaders(shared.slots[comm.rank][place], shared.bells[server]),
            *shared.vectors[comm.rank][place],
        )
        for place, server in enumerate(servers)
    ]


class _Shared(NamedTuple):
    """Memory of the members that all map, by rank; that of workers for each server, in their order."""

    vectors: Mapping[int, Sequence[tuple[Tensor, Tensor]]]
    """Memory of requests, memory of answers."""
    slots: Mapping[int, Sequence[Slot]]
    bells: Mapping[int, Word]


def _share(comm: ShmCommunicator, servers: Sequence[int], length: int, mapped_bytes: int) -> _Shared:
    """Collective: makes the shared memory of all members, maps it and returns it."""
    if comm.rank in servers:
        mine = [comm.empty(BELL_BYTES, torch.uint8).zero_()]
    else:
        sizes = (mapped_bytes, mapped_bytes, slot_bytes(length))
        mine = [comm.empty(size, torch.uint8) for _ in servers for size in sizes]
        for slot in mine[2::3]:
            slot.zero_()
    everybody = comm.share(mine)
    workers = {rank: bufs for rank, bufs in enumerate(everybody) if rank not in servers}
    return _Shared(
        {rank: list(zip(bufs[0::3], bufs[1::3], strict=True)) for rank, bufs in workers.items()},
        {rank: [Slot(buf, comm, length) for buf in bufs[2::3]] for rank, bufs in workers.items()},
        {rank: comm.word(everybody[rank][0]) for rank in servers},
    )


def _refuse_unsuited(comm: Communicator, servers: Sequence[int], most_numbers: int, mapped_bytes: int) -> None:
    """Raises `UsageError` for a communicator or arguments with which no exchange can be opened."""
    if comm.device.type != "cpu":
        raise UsageError(
            f"a server and its workers exchange vectors on the host, but engine {comm.engine} moves tensors on {comm.device}; "
            "choose another --engine: shm on one machine, mpi or gloo between several"
        )
    if not servers or len(set(servers)) != len(servers) or not all(0 <= rank < comm.size for rank in servers):
        raise UsageError(
            f"servers must be different ranks in 0..{comm.size - 1} of {comm.name}, at least one; received {list(servers)}"
        )
    if len(servers) == comm.size:
        raise UsageError(
            f"all {comm.size} processes of {comm.name} would be servers, and none a worker; start more processes (-n), "
            "or give fewer --servers"
        )
    if most_numbers < 0 or mapped_bytes < 0:
        raise UsageError(f"most_numbers and mapped_bytes must be 0 or more; received {most_numbers} and {mapped_bytes}")

"""Shared parts of the algorithms: packing lists into few vectors, send-receive with a partner, and the order of members."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from unisono.comm.arithmetic import HALF_TYPES
from unisono.comm.base import SUM, Communicator, Op, Reducer
from unisono.comm.packing import pack, unpack

WIDENED: Mapping[torch.dtype, torch.dtype] = dict.fromkeys(HALF_TYPES, torch.float32)
"""Sums of halves travel as float32, from the first addition to the last, and are rounded once."""


def reduce_grouped(reduce: Callable[[Tensor, Op], None]) -> Reducer:
    """Makes a reducer of lists from one of a single vector: short buffers of one type are sent together, empty ones not at all."""

    def reduce_all(bufs: Sequence[Tensor], op: Op) -> None:
        packs = pack(bufs, _wire_types(op))
        for vector, _ in packs:
            reduce(vector, op)
        unpack(packs)

    return reduce_all


def wire_bytes(bufs: Sequence[Tensor], op: Op) -> int:
    """Local: returns the number of bytes in which the vectors of a list are sent; the same on all members."""
    wire = _wire_types(op)
    return sum(buf.numel() * wire.get(buf.dtype, buf.dtype).itemsize for buf in bufs)


def sendrecv(comm: Communicator, outgoing: Tensor, dest: int, incoming: Tensor, source: int) -> None:
    """Blocking: sends to one member while receiving from another. Empty messages are left out, on both sides alike."""
    # The receive comes first, so that the engine knows where to put the message when it arrives.
    receiving = comm.start_recv(incoming, source) if incoming.numel() else None
    sending = comm.start_send(outgoing, dest) if outgoing.numel() else None
    if receiving is not None:
        receiving.wait()
    if sending is not None:
        sending.wait()


def order_by_node(nodes: Sequence[int]) -> list[int]:
    """Returns the members in an order that keeps those of one node together, so that few neighbours communicate through the
    network."""
    return sorted(range(len(nodes)), key=lambda rank: (nodes[rank], rank))


def _wire_types(op: Op) -> Mapping[torch.dtype, torch.dtype]:
    """Returns buffer type -> type in which it is sent: a sum of half precision is sent in a wider one, all others as they are."""
    return WIDENED if op is SUM else {}

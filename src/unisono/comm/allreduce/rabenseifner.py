"""Rabenseifner: halves the vector with ever farther partners until each holds one finished slice, then gathers the slices.

Rabenseifner 2004; Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19 (2005). In
round k a member swaps half of what it still holds with the member 2^k places away and reduces the half it keeps (the largest
messages are sent to the nearest partner, mostly of the same node); log2 P more rounds gather the finished slices. With P the
largest power of two in N (the other members are folded in and out, see power_of_two.py):

    messages sent by each member   2 log2 P   (N > P: + 1 for an odd one of a pair; 1 in all for an even one)
    elements sent by each member   2 (P - 1) / P of the vector   (and the whole vector for each of those additional messages)

Each slice is finished by one member and copied to the others, so all end with the same bits. As few bytes as the ring in fewer
messages, where N is a power of two.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from unisono.comm.allreduce.partners import sendrecv
from unisono.comm.allreduce.power_of_two import Core, with_power_of_two
from unisono.comm.arithmetic import combine
from unisono.comm.base import Communicator, Op, Reducer


def prepare(comm: Communicator, nodes: Sequence[int]) -> Reducer:
    """Local: makes a reducer over `comm` by this algorithm. Nothing else may use the messages of `comm`."""
    return with_power_of_two(comm, nodes, _reduce_by_halves)


def _reduce_by_halves(core: Core, buf: Tensor, op: Op) -> None:
    """All-reduce in place among a power of two of members: first a reduce-scatter by halves, then an all-gather on the same way
    back.
    """
    held = buf
    way_back: list[tuple[int, Tensor, Tensor]] = []
    distance = 1
    while distance < core.size:
        position = core.position ^ distance
        partner = core.members[position]
        lower, upper = held[: held.numel() // 2], held[held.numel() // 2 :]
        kept, given = (lower, upper) if core.position < position else (upper, lower)
        theirs = core.scratch.get(kept.numel(), buf.dtype)
        sendrecv(core.comm, given, partner, theirs, partner)
        first, second = (kept, theirs) if core.position < position else (theirs, kept)
        combine(first, second, op, out=kept)
        way_back.append((partner, kept, given))
        held = kept
        distance *= 2
    for partner, finished, missing in reversed(way_back):
        sendrecv(core.comm, finished, partner, missing, partner)

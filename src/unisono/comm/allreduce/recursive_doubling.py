"""Recursive doubling: in round k every member swaps its whole vector with the member 2^k positions away and adds.

Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19 (2005). With P the largest
power of two in N (the other members are folded in and out, see power_of_two.py):

    messages sent by each member   log2 P   (N > P: + 1 for an odd one of a pair; 1 in all for an even one)
    elements sent by each member   as many vectors

After round k the 2^(k+1) members of a block have added the same two operands, and the lower half of the block stands first on both
sides, so they hold the same bits; after the last round all do. Fewest messages, so best for short vectors.
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
    return with_power_of_two(comm, nodes, _reduce_by_doubling)


def _reduce_by_doubling(core: Core, buf: Tensor, op: Op) -> None:
    """All-reduce in place among a power of two of members: in every turn partners at twice the distance exchange and combine the
    whole buffer.
    """
    distance = 1
    while distance < core.size:
        position = core.position ^ distance
        theirs = core.scratch.get(buf.numel(), buf.dtype)
        sendrecv(core.comm, buf, core.members[position], theirs, core.members[position])
        first, second = (buf, theirs) if core.position < position else (theirs, buf)
        combine(first, second, op, out=buf)
        distance *= 2

"""Algorithms that need a power of two: the other members add their vector to a neighbour's and get the result back.

Of N = P + E members (P the largest power of two) the first 2 E form pairs: the even one sends its vector to the odd one, which
takes part for both, and waits for the result. The pairs and the rest are the P positions of the core.

    additional cost   even: 1 message, the whole vector; odd: 1 message, the whole vector; others: none

Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19 (2005), section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from unisono.comm.allreduce.partners import order_by_node, reduce_grouped
from unisono.comm.arithmetic import Scratch, combine
from unisono.comm.base import Communicator, Op, Reducer


@dataclass(frozen=True)
class Core:
    """The members that take part, a power of two of them; seen from one of them."""

    comm: Communicator
    position: int
    members: tuple[int, ...]
    """Rank of the member at each position."""
    scratch: Scratch

    @property
    def size(self) -> int:
        """Number of members that take part."""
        return len(self.members)


def with_power_of_two(comm: Communicator, nodes: Sequence[int], reduce: Callable[[Core, Tensor, Op], None]) -> Reducer:
    """Local: makes a reducer for any number of members from a function that needs a power of two of them."""
    order = order_by_node(nodes)
    size = 1 << (comm.size.bit_length() - 1)
    extra = comm.size - size
    evens, members = order[: 2 * extra : 2], tuple(order[1 : 2 * extra : 2] + order[2 * extra :])
    scratch = Scratch(comm)

    def even(buf: Tensor, op: Op) -> None:  # noqa: ARG001 -- the partner reduces
        partner = members[evens.index(comm.rank)]
        comm.send(buf, partner)
        comm.recv(buf, partner)

    def inside(buf: Tensor, op: Op) -> None:
        core = Core(comm, members.index(comm.rank), members, scratch)
        if core.position >= extra:
            reduce(core, buf, op)
            return
        partner = evens[core.position]
        theirs = scratch.get(buf.numel(), buf.dtype)
        comm.recv(theirs, partner)
        combine(theirs, buf, op, out=buf)
        reduce(core, buf, op)
        comm.send(buf, partner)

    return reduce_grouped(even if comm.rank in evens else inside)

"""Ring: every member sends to its right and receives from its left, one slice at a time.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel Distrib. Comput. 69
(2009). The vector has N slices. N-1 steps pass partial sums on, after which each member holds one finished slice; N-1 more
steps pass the finished slices on.

    messages sent by each member   2 (N - 1)
    elements sent by each member   2 (N - 1) / N of the vector, the least that any algorithm can do

Each slice is finished by one member and copied to the others, so all end with the same bits (the order of the sum goes
round the ring from a different member for each slice). Best for long vectors; the number of steps grows with N.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from unisono.comm.allreduce.partners import order_by_node, reduce_grouped, sendrecv
from unisono.comm.arithmetic import Scratch, combine
from unisono.comm.base import Communicator, Op, Reducer, even_slices


def prepare(comm: Communicator, nodes: Sequence[int]) -> Reducer:
    """Local: makes a reducer over `comm` by this algorithm. Nothing else may use the messages of `comm`. The ring enters and leaves
    every node once.
    """
    order = order_by_node(nodes)
    position = order.index(comm.rank)
    left, right = order[position - 1], order[(position + 1) % comm.size]
    scratch = Scratch(comm)

    def reduce(buf: Tensor, op: Op) -> None:
        parts = [buf[part] for part in even_slices(buf.numel(), comm.size)]
        for step in range(comm.size - 1):
            mine, next_ = parts[(position - step) % comm.size], parts[(position - step - 1) % comm.size]
            partial = scratch.get(next_.numel(), buf.dtype)
            sendrecv(comm, mine, right, partial, left)
            combine(partial, next_, op, out=next_)
        for step in range(comm.size - 1):
            finished, missing = parts[(position + 1 - step) % comm.size], parts[(position - step) % comm.size]
            sendrecv(comm, finished, right, missing, left)

    return reduce_grouped(reduce)

"""Node-aware: reduce inside each node, between the nodes, and inside again; each leg by the communicator made for it.

The caller composes: `local` joins the members of one node (shared memory, say), `between` reduces over members of different
nodes. With K nodes of L members each, long vectors take

    reduce_scatter over local      member r of every node holds the node's sum of slice r
    between                        the r-th members of all nodes reduce slice r, so that L processes share the network
    allgather over local

and each member moves 1/L of what it would between nodes. Short vectors, and nodes with different numbers of members, go
through the first member of each node: local all-reduce, all-reduce between the first members, local broadcast.

Every leg gives all its members the same bits, so the whole does. Halves are widened once, around all legs. A group that lies
within one node has one leg, the local all-reduce.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from unisono.comm.allreduce.partners import reduce_grouped
from unisono.comm.arithmetic import Scratch
from unisono.comm.base import Communicator, Op, Reducer, even_slices

SHARED_FROM_BYTES = 64 << 10
"""From this length on all members of a node share the work between nodes; below, more messages cost more than they save."""


def between_nodes_color(nodes: Sequence[int], rank: int) -> int | None:
    """Local: returns the color with which member `rank` joins the split for `between`; None: it takes no part between nodes.

    `nodes[r]` is the node of member r. The color is the position among the members of the node; where nodes differ in their number
    of members only the first ones join.
    """
    position = nodes[:rank].count(nodes[rank])
    return position if position == 0 or _even(nodes) else None


def prepare(nodes: Sequence[int], local: Communicator, between: Reducer | None) -> Reducer:
    """Local: makes a reducer over all members. `local` holds the members of this node in the order of their ranks; `between` works
    on a split of all members by `between_nodes_color` (also in that order) and is None where that is None. Both are used by this
    reducer alone.
    """
    if len(set(nodes)) == 1:
        return local.allreduce
    shared = _even(nodes) and local.size > 1
    scratch = Scratch(local)

    def reduce_sharing(buf: Tensor, op: Op) -> None:
        slices = even_slices(buf.numel(), local.size)
        counts = [part.stop - part.start for part in slices]
        mine = scratch.get(counts[local.rank], buf.dtype)
        local.reduce_scatter(mine, buf, counts, op)
        if between is not None:
            between([mine], op)
        local.allgather(buf, mine, counts)

    def reduce_through_first(buf: Tensor, op: Op) -> None:
        local.allreduce(buf, op)
        if between is not None and local.rank == 0:
            between([buf], op)
        local.broadcast(buf, root=0)

    def reduce(buf: Tensor, op: Op) -> None:
        if shared and buf.nbytes >= SHARED_FROM_BYTES:
            reduce_sharing(buf, op)
        else:
            reduce_through_first(buf, op)

    return reduce_grouped(reduce)


def _even(nodes: Sequence[int]) -> bool:
    """Whether all nodes have the same number of members."""
    return len({list(nodes).count(node) for node in set(nodes)}) == 1

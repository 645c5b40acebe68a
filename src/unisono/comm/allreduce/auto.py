"""Auto: the algorithm that should be fastest for the length of the vector and the number of members.

Short vectors wait for messages, so the fewest messages win; long ones wait for bytes, so the fewest bytes win.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from unisono.comm.allreduce import rabenseifner, recursive_doubling, ring
from unisono.comm.base import Communicator, Op, Reducer

SHORT_BYTES = 64 << 10
"""Up to here the number of messages decides."""

RING_SLICE_BYTES = 32 << 10
"""From here on a ring's many messages, one slice each, cost less than folding a whole vector in and out."""


def choose(num_bytes: int, size: int) -> str:
    """Local: name of the algorithm for a vector of `num_bytes` over `size` members; a pure function, so all choose alike."""
    if size <= 2 or num_bytes <= SHORT_BYTES:
        return "recursive_doubling"
    power_of_two = size & (size - 1) == 0
    return "rabenseifner" if power_of_two or num_bytes < size * RING_SLICE_BYTES else "ring"


def prepare(comm: Communicator, nodes: Sequence[int]) -> Reducer:
    """Local: a reducer over `comm` that chooses for every call."""
    algorithms = {
        "recursive_doubling": recursive_doubling.prepare(comm, nodes),
        "rabenseifner": rabenseifner.prepare(comm, nodes),
        "ring": ring.prepare(comm, nodes),
    }

    def reduce(buf: Tensor, op: Op) -> None:
        algorithms[choose(buf.nbytes, comm.size)](buf, op)

    return reduce

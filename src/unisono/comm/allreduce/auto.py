"""Auto: chooses by message size between algorithms over messages and the engine's own all-reduce.

Short vectors wait for messages, so the fewest messages win; long ones wait for bytes, and there gloo's own all-reduce, a ring
that sends one piece while it sums another, is ahead of ours. All members see the same lengths, so all choose alike.

A list whose vectors are short all together is reduced vector by vector; a longer one goes to the engine as a whole, which
moves its vectors at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from unisono.comm.allreduce import rabenseifner, recursive_doubling
from unisono.comm.allreduce.partners import reduce_grouped, wire_bytes
from unisono.comm.base import Communicator, Op, Reducer

BY_LENGTH: tuple[tuple[int, str], ...] = ((128 << 10, "recursive_doubling"), (256 << 10, "rabenseifner"))
"""Up to so many bytes this algorithm, the shortest first; the engine itself above the last.

From `bench/algorithms.py`, gloo between hosts at 1 Gbit/s, one rank on each: how many times as long as gloo's own take recursive
doubling and Rabenseifner. docs/decisions/0005-allreduce.md says how far these figures go, docs/results/ holds what is published.

               2 hosts       3 hosts       4 hosts
    64 KiB   0.78  0.85    0.57  0.58    0.51  0.56
    128 KiB  0.58  0.86    0.82  0.92    0.45  0.55
    256 KiB  0.67  0.67    1.31  1.08    0.88  0.80
    1 MiB    2.27  1.51    2.66  2.30    2.88  1.44
"""


def choose(num_bytes: int) -> str:
    """Pure: returns the name of the algorithm for a message of so many bytes; `engine` is the engine's own."""
    return next((name for longest, name in BY_LENGTH if num_bytes <= longest), "engine")


def description() -> str:
    """Pure: describes the whole choice, for people."""
    return ", ".join([*(f"{name} up to {longest >> 10} KiB" for longest, name in BY_LENGTH), "the engine itself for longer ones"])


def prepare(comm: Communicator, nodes: Sequence[int]) -> Reducer:
    """Local: makes a reducer over `comm`, which chooses the algorithm for every call by its length. Nothing else may use `comm`."""
    over_messages = {
        "recursive_doubling": recursive_doubling.prepare(comm, nodes),
        "rabenseifner": rabenseifner.prepare(comm, nodes),
    }
    by_vector = reduce_grouped(lambda vector, op: over_messages[choose(vector.nbytes)]([vector], op))

    def reduce(bufs: Sequence[Tensor], op: Op) -> None:
        if choose(wire_bytes(bufs, op)) == "engine":
            comm.allreduce(bufs, op)
        else:
            by_vector(bufs, op)

    return reduce

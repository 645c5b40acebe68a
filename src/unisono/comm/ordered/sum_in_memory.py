"""Sums blocks in tree order where every rank maps the memory of all: nothing is sent.

Between two barriers rank r alone reads and writes slice r of all blocks: it adds them in place, in the order of the tree, and
writes the sum into the vectors of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from unisono.comm.base import Communicator, even_slices
from unisono.comm.shared_memory.reduce_slices import tree_sum

_ALIGN = 64
"""Elements: ranks write different lines of the cache."""


class SumInMemory:
    """The method for shared memory. `shared[r]` are the blocks that rank r shares, one after another, each of `num_vectors`
    vectors."""

    def __init__(
        self, comm: Communicator, shared: Sequence[Sequence[Tensor]], num_vectors: int, merges: Sequence[tuple[int, int]]
    ) -> None:
        self._comm = comm
        self._own = shared[comm.rank]
        self._num_vectors = num_vectors
        self._steps = []
        for place in range(num_vectors):
            vectors = [theirs[place::num_vectors] for theirs in shared]
            mine = even_slices(vectors[0][0].numel(), comm.size, _ALIGN)[comm.rank]
            parts = [block[mine] for blocks in vectors for block in blocks]
            self._steps.append(tree_sum(parts, merges, [blocks[-1][mine] for blocks in vectors]))

    def run(self, blocks: Sequence[Sequence[Tensor]]) -> None:
        """Collective, blocking: see `ordered_sum.SumMethod`."""
        given = [vector for block in blocks for vector in block]
        # Vectors that the others cannot reach, or other ones than in the first step, pass through those that they can.
        moved = [place for place, vector in enumerate(given) if vector.data_ptr() != self._own[place].data_ptr()]
        for place in moved:
            self._own[place].copy_(given[place])
        self._comm.barrier()
        for step in self._steps:
            step()
        self._comm.barrier()
        for place in moved:
            if place >= len(given) - self._num_vectors:
                given[place].copy_(self._own[place])

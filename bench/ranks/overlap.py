"""A rank that reduces, computes, or does both at the same time; started by `unisono run` on each host."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

import unisono as un
from bench.ranks.slot import attend

WIDTH = 256
"""Of the square matrices whose product is the computation: three of them stay in a core's own cache."""


class Overlapping:
    """One rank with a vector to reduce and matrices to multiply."""

    def __init__(self, comm: un.Communicator) -> None:
        self._comm = comm
        self._vector = torch.empty(0)
        self._left, self._right = torch.rand(WIDTH, WIDTH), torch.rand(WIDTH, WIDTH)
        self._product = torch.empty(WIDTH, WIDTH)

    def prepare(self, num_bytes: int) -> None:
        """Collective: a vector of this size; refuses a wrong sum of a started all-reduce."""
        pattern = torch.arange(num_bytes // 4, dtype=torch.float32) % 1000
        self._vector = self._comm.empty(num_bytes // 4)
        self._vector.copy_(pattern + self._comm.rank)
        work = self._comm.start_allreduce(self._vector)
        self._multiply(10)
        work.wait()
        size = self._comm.size
        if not torch.equal(self._vector, pattern * size + size * (size - 1) / 2):
            raise ArithmeticError(f"rank {self._comm.rank}: the started all-reduce gave wrong sums")
        self._vector.zero_()

    def allreduce(self, products: int) -> list[float]:  # noqa: ARG002 -- all turns are asked alike
        """Collective: microseconds of an all-reduce that is waited for at once."""
        return self._timed(lambda: self._comm.allreduce(self._vector))

    def compute(self, products: int) -> list[float]:
        """Collective, as all compute at the same time: microseconds of the matrix products alone."""
        return self._timed(lambda: self._multiply(products))

    def both(self, products: int) -> list[float]:
        """Collective: microseconds from the start of the all-reduce to the end of `wait`, with the products in between."""

        def overlapped() -> None:
            work = self._comm.start_allreduce(self._vector)
            self._multiply(products)
            work.wait()

        return self._timed(overlapped)

    def _multiply(self, products: int) -> None:
        for _ in range(products):
            torch.mm(self._left, self._right, out=self._product)

    def _timed(self, call: Callable[[], object]) -> list[float]:
        self._comm.barrier()
        start = time.perf_counter()
        call()
        return [round((time.perf_counter() - start) * 1e6, 1)]


def main() -> None:
    with un.connect(quiet=True) as comm:
        rank = Overlapping(comm)
        versions = {"unisono": un.__version__, "torch": torch.__version__, "how": comm.origin}
        actions = {"prepare": rank.prepare, "allreduce": rank.allreduce, "compute": rank.compute, "both": rank.both}
        attend(comm.rank, comm.size, versions, actions)


if __name__ == "__main__":
    main()

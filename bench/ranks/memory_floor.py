"""A rank that talks to nobody: `... SOCKET GROUP RANK SIZE LIBRARY`.

It holds its slice of every rank's vector in memory of its own and sums them by a compiled loop, at the same time as the others
do. An all-reduce in place must move at least these bytes, so it cannot be quicker on this machine.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

import numpy as np

from bench.ranks.reducing import Floats, Reducing
from bench.ranks.slot import attend


class Floor(Reducing["ctypes.Array[ctypes.c_void_p]"]):
    """The slices of all ranks, in shared memory as an all-reduce would have them."""

    def __init__(self, rank: int, size: int, library: str) -> None:
        self._reduce_parts = ctypes.CDLL(library).reduce_parts
        self._numel = 0
        self._parts: list[Floats] = []
        super().__init__(rank, size, self._slices, self._sum)

    def verify(self) -> None:
        """Local: refuse a wrong sum."""
        for number, part in enumerate(self._parts):
            part[:] = np.arange(part.size, dtype=np.float32) % 1000 + number
        right = sum(part.copy() for part in self._parts)
        self._sum(self._buffer()[0])
        if not all(np.array_equal(part, right) for part in self._parts):
            raise ArithmeticError("the compiled loop gives wrong sums")
        for part in self._parts:
            part.fill(0)

    def _slices(self, numel: int) -> tuple[ctypes.Array[ctypes.c_void_p], Floats]:
        self._numel = numel // self._size
        self._parts = [np.frombuffer(mmap.mmap(-1, self._numel * 4), np.float32) for _ in range(self._size)]
        for part in self._parts:
            part.fill(0)
        addresses = [part.ctypes.data for part in self._parts]
        return (ctypes.c_void_p * self._size)(*addresses), self._parts[0]

    def _sum(self, addresses: ctypes.Array[ctypes.c_void_p]) -> None:
        if self._reduce_parts(addresses, self._size, ctypes.c_size_t(self._numel)):
            raise ValueError(f"the compiled loop is not written for {self._size} ranks")


def main() -> None:
    rank, size, library = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank * len(cpus) // size]})
    attend(rank, size, {"numpy": np.__version__}, Floor(rank, size, library).actions())


if __name__ == "__main__":
    main()

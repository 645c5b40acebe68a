"""What every rank of an all-reduce contender can do: hold a buffer, check the sum, time calls."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

Buffer = TypeVar("Buffer")
Floats = npt.NDArray[np.float32]


class Reducing(Generic[Buffer]):
    """One rank. `allocate(numel)` gives a buffer and the same memory as an array; `reduce(buffer)` sums it in place."""

    def __init__(
        self, rank: int, size: int, allocate: Callable[[int], tuple[Buffer, Floats]], reduce: Callable[[Buffer], object]
    ) -> None:
        self._rank, self._size = rank, size
        self._allocate, self._reduce = allocate, reduce
        self._held: tuple[Buffer, Floats] | None = None

    def actions(self) -> dict[str, Callable[..., Any]]:
        return {"prepare": self.prepare, "verify": self.verify, "time": self.time, "drop": self.drop}

    def prepare(self, num_bytes: int) -> None:
        """Local: a buffer of this size, every page of it touched."""
        self.drop()
        buffer, array = self._allocate(num_bytes // 4)
        array.fill(0)
        self._held = buffer, array

    def verify(self) -> None:
        """Collective: refuse a wrong sum. All terms and sums are whole numbers that float32 holds exactly."""
        buffer, array = self._buffer()
        pattern = np.arange(array.size, dtype=np.float32) % 1000
        array[:] = pattern + self._rank
        self._reduce(buffer)
        wrong = np.flatnonzero(array != pattern * self._size + self._size * (self._size - 1) / 2)
        if wrong.size:
            raise ArithmeticError(f"rank {self._rank}: {wrong.size} of {array.size} sums are wrong, the first at {wrong[0]}")
        array.fill(0)

    def time(self, num_calls: int) -> list[float]:
        """Collective: microseconds of each call. One more call comes first and is not timed: it wakes the ranks, which learn
        of their turn at different times, and fetches what the contender before this one pushed out of the caches."""
        buffer, _ = self._buffer()
        reduce, now = self._reduce, time.perf_counter
        times = []
        gc.disable()
        reduce(buffer)
        for _ in range(num_calls):
            start = now()
            reduce(buffer)
            times.append(now() - start)
        gc.enable()
        return [round(seconds * 1e6, 1) for seconds in times]

    def drop(self) -> None:
        """Local: give the buffer back."""
        self._held = None
        gc.collect()

    def _buffer(self) -> tuple[Buffer, Floats]:
        assert self._held is not None, "prepare comes first"
        return self._held

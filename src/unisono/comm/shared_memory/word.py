"""A number in shared memory on which one process sleeps and which others change: a way to wait without a message."""

from __future__ import annotations

from time import perf_counter

from torch import Tensor

from unisono.comm.shared_memory.board import Board

WORD_BYTES = 64
"""A whole cache line."""
SPIN_S = 300e-6
"""Time that a waiter spins before it sleeps, where every process has a core: the time of a server for a megabyte. Longer than in
a collective, where nobody works meanwhile; to be woken takes some 50 us on either side."""


class Word:
    """One process's view of such a number. Its memory must be zero when the first view is made."""

    def __init__(self, memory: Tensor, board: Board) -> None:
        self._board = board
        self._address = memory.data_ptr()
        self._cells = memory[:WORD_BYTES].numpy().data.cast("I")  # the number, and whether its waiter sleeps

    @property
    def value(self) -> int:
        """Local: returns the number (an acquire load): the reader sees all that was written before it was stored."""
        value: int = self._cells[0]
        self._board.futex.fence()
        return value

    @property
    def relaxed_value(self) -> int:
        """Local: returns the number without ordering (a relaxed load): writes before its store may not be visible yet."""
        value: int = self._cells[0]
        return value

    def store(self, value: int) -> None:
        """Local, not blocking: stores the number after all earlier writes (a release store), and wakes the waiting process."""
        futex = self._board.futex
        futex.fence()
        self._cells[0] = value
        futex.full_fence()  # either we see that the waiter sleeps, or it sees the number before it does
        if self._cells[1]:
            futex.wake(self._address)

    def wait(self, seen: int, timeout_s: float) -> None:
        """Blocking until the number is no longer `seen`, or the time is over. All messages of the process make progress
        meanwhile."""
        cells, board = self._cells, self._board
        now = perf_counter()
        end, spin_until = now + timeout_s, now + min(SPIN_S if board.spin_s else 0.0, timeout_s)
        while cells[0] == seen and now < spin_until:
            now = perf_counter()
        cells[1] = 1
        board.futex.full_fence()
        slept_s = 0.0
        while cells[0] == seen and (left_s := end - perf_counter()) > 0:
            slept_s = board.on_idle(slept_s)
            board.futex.wait(self._address, seen, min(slept_s, left_s))
        cells[1] = 0

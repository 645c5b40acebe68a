"""Headers of an exchange in shared memory. Each worker has a slot for each server, which holds its call and the answer to it:

    calls           how many calls the worker has made: by it the server sees a new one
    answers         how many answers the server has given: the worker sleeps on it
    time            of the call: the oldest is served first
    call, answer    the headers

and each server has one bell, on which it sleeps and which a worker rings that has called. A slot and the vectors beside it have one
writer at any time: the worker while it has no call open, the server from the call to the answer. A reader that sees a
changed number sees all that was written before it (see `Word`), so vectors need no fence.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from time import monotonic_ns

import numpy as np
from torch import Tensor

from unisono.comm.driver import Work
from unisono.comm.engines.shm import ShmCommunicator
from unisono.comm.exchange.base import Numbers
from unisono.comm.exchange.headers import ServerHeaders, WorkerHeaders
from unisono.comm.shared_memory.word import WORD_BYTES, Word

BELL_BYTES = WORD_BYTES
_TIME = struct.Struct("=Q")
_TIME_AT, _HEADERS_AT = 2 * WORD_BYTES, 3 * WORD_BYTES
_MASK = 0xFFFFFFFF


def slot_bytes(length: int) -> int:
    """Pure: returns the bytes of a slot with headers of `length` numbers."""
    return _HEADERS_AT + 2 * 8 * length


class Slot:
    """One worker's call and its answer in shared memory, for either side."""

    def __init__(self, memory: Tensor, comm: ShmCommunicator, length: int) -> None:
        self.calls, self.answers = comm.word(memory), comm.word(memory[WORD_BYTES:])
        self._bytes = memory.numpy().data
        numbers = np.frombuffer(self._bytes, np.float64, offset=_HEADERS_AT)
        self.call, self.answer = numbers[:length], numbers[length : 2 * length]

    @property
    def time(self) -> int:
        """Time at which the call in this slot was sent, in nanoseconds of the monotonic clock."""
        (time,) = _TIME.unpack_from(self._bytes, _TIME_AT)
        return int(time)

    @time.setter
    def time(self, value: int) -> None:
        _TIME.pack_into(self._bytes, _TIME_AT, value)


class SlotWorkerHeaders(WorkerHeaders):
    """The worker's side of the header slots."""

    def __init__(self, slot: Slot, bell: Word) -> None:
        self._slot = slot
        self._bell = bell
        self.outgoing, self.incoming = slot.call, slot.answer
        self._num_calls = 0

    def send(self) -> list[Work[None]]:
        self._num_calls = (self._num_calls + 1) & _MASK
        self._slot.time = now = monotonic_ns()
        self._slot.calls.store(self._num_calls)
        self._bell.store(now & _MASK)  # a new number, except once in 2^32 times; then the server wakes at its next check
        return []

    def has_reply(self, timeout_s: float) -> bool:
        answers = self._slot.answers
        if answers.value != self._num_calls:
            answers.wait((self._num_calls - 1) & _MASK, timeout_s)
        return answers.value == self._num_calls


class SlotServerHeaders(ServerHeaders):
    """The server's side of the header slots."""

    def __init__(self, slots: Sequence[Slot], bell: Word) -> None:
        self._slots = slots
        self._bell = bell
        self._heard = bell.value
        self._num_calls = [0] * len(slots)
        self._queue: deque[int] = deque()
        self.outgoing = [slot.answer for slot in slots]

    def send(self, caller: int) -> list[Work[None]]:
        self._slots[caller].answers.store(self._num_calls[caller])
        return []

    def next(self) -> tuple[int, Numbers] | None:
        if not self._queue:
            self._queue_new_calls()
            if not self._queue:
                return None
        caller = self._queue.popleft()
        return caller, self._slots[caller].call

    def _queue_new_calls(self) -> None:
        """Queues all calls that have arrived since the last time, the oldest first; calls that arrive while these are served
        come later."""
        self._heard = self._bell.value  # before the check: a later call changes the bell
        seen = self._num_calls
        new = [caller for caller, slot in enumerate(self._slots) if slot.calls.relaxed_value != seen[caller]]
        if not new:
            return
        _ = self._slots[new[0]].calls.value  # what they have written before is seen from here on
        for caller in new:
            seen[caller] = (seen[caller] + 1) & _MASK
        self._queue.extend(sorted(new, key=lambda caller: self._slots[caller].time))

    def wait(self, timeout_s: float) -> None:
        self._bell.wait(self._heard, timeout_s)

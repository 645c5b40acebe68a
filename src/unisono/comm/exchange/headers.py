"""The header of a call or reply, sent before its vector; over any communicator it is a message of fixed length.

In shared memory it lies in a slot (header_slots.py).
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unisono.comm.base import ANY, DTYPES, Communicator, Envelope, Work
from unisono.comm.exchange.base import Numbers
from unisono.errors import NotDone, UsageError

HEADER_TAG, BODY_TAG = 1, 2
NO_VECTOR = -1
AS_MESSAGE, IN_CALL = -1, -2
_FIXED = struct.Struct("=5d")
_NUM_FIXED = 5


class Header(NamedTuple):
    """The header of a call or reply. It is sent as float64, which holds such numbers exactly."""

    kind: int
    dtype: int
    """Index of the vector's type in DTYPES; NO_VECTOR: there is no vector."""
    numel: int
    place: int
    """Byte in the memory that both map at which the vector begins; AS_MESSAGE: it is sent as a message; IN_CALL: it is an answer
    and lies where the vector of the call did."""
    num_tail: int


def write_header(buf: Numbers, kind: int, vector: Tensor | None, place: int, tail: Sequence[float] | Numbers) -> None:
    """Local: writes a header into a buffer, whose length limits the tail."""
    num_tail, most = len(tail), len(buf) - _NUM_FIXED
    if num_tail > most:
        raise UsageError(f"a tail of {num_tail} numbers does not fit; the exchange was opened for {most} (most_numbers)")
    dtype, numel = (NO_VECTOR, 0) if vector is None else (DTYPES.index(vector.dtype), vector.numel())
    _FIXED.pack_into(buf.data, 0, kind, dtype, numel, place, num_tail)
    if num_tail:
        buf[_NUM_FIXED : _NUM_FIXED + num_tail] = tail


def read_header(buf: Numbers) -> tuple[Header, Numbers]:
    """Local: reads a header and returns it with a copy of the tail."""
    header = Header(*map(int, _FIXED.unpack_from(buf.data)))
    return header, buf[_NUM_FIXED : _NUM_FIXED + header.num_tail].copy()


def header_length(most_numbers: int) -> int:
    """Pure: returns the number of numbers in a header."""
    return _NUM_FIXED + most_numbers


class WorkerHeaders(ABC):
    """Headers between a worker and one server."""

    outgoing: Numbers
    """Buffer for the header, to be written before `send`."""
    incoming: Numbers
    """Buffer with the answer, once it has arrived."""

    @abstractmethod
    def send(self) -> list[Work[None]]:
        """Local, not blocking: sends `outgoing`. Wait for the result before `outgoing` is used again."""

    @abstractmethod
    def has_reply(self, timeout_s: float) -> bool:
        """Blocking up to `timeout_s`: whether the reply to the header that was sent has arrived."""


class ServerHeaders(ABC):
    """Headers between a server and all workers, by their numbers."""

    outgoing: Sequence[Numbers]

    @abstractmethod
    def send(self, caller: int) -> list[Work[None]]:
        """Local, not blocking: sends the answer in `outgoing[caller]`."""

    @abstractmethod
    def next(self) -> tuple[int, Numbers] | None:
        """Local, not blocking: returns the oldest new call; its header must be read before the next call of this method."""

    @abstractmethod
    def wait(self, timeout_s: float) -> None:
        """Blocking until there may be a call, for `timeout_s` at most."""


class MessageWorkerHeaders(WorkerHeaders):
    """The worker's headers, sent as messages."""

    def __init__(self, comm: Communicator, server: int, length: int) -> None:
        self._comm = comm
        self._server = server
        self.outgoing, self.incoming = np.zeros(length), np.zeros(length)
        self._out, self._in = torch.from_numpy(self.outgoing), torch.from_numpy(self.incoming)
        self._answer: Work[object] | None = None

    def send(self) -> list[Work[None]]:
        self._answer = self._comm.start_recv(self._in, self._server, HEADER_TAG)
        return [self._comm.start_send(self._out, self._server, HEADER_TAG)]

    def has_reply(self, timeout_s: float) -> bool:
        assert self._answer is not None
        return is_done(self._answer, timeout_s)


class MessageServerHeaders(ServerHeaders):
    """The server's headers, sent as messages: one receive is always open, so that calls queue in their order."""

    def __init__(self, comm: Communicator, workers: Sequence[int], length: int) -> None:
        self._comm = comm
        self._workers = workers
        self._number_of = {rank: number for number, rank in enumerate(workers)}
        self.outgoing = [np.zeros(length) for _ in workers]
        self._outs = [torch.from_numpy(buf) for buf in self.outgoing]
        self._incoming = np.zeros(length), np.zeros(length)
        self._ins = [torch.from_numpy(buf) for buf in self._incoming]
        self._turn = 0
        self._call = self._start_receive()

    def send(self, caller: int) -> list[Work[None]]:
        return [self._comm.start_send(self._outs[caller], self._workers[caller], HEADER_TAG)]

    def next(self) -> tuple[int, Numbers] | None:
        if not self._call.done():
            return None
        caller, header = self._number_of[self._call.wait().source], self._incoming[self._turn]
        self._turn = 1 - self._turn
        self._call = self._start_receive()
        return caller, header

    def wait(self, timeout_s: float) -> None:
        is_done(self._call, timeout_s)

    def _start_receive(self) -> Work[Envelope]:
        """Starts to receive the next header, of any worker, and returns the work."""
        return self._comm.start_recv(self._ins[self._turn], ANY, HEADER_TAG)


def is_done(work: Work[object], timeout_s: float) -> bool:
    """Blocking for `timeout_s` at most: returns whether the work is done; raises its error."""
    try:
        work.wait(timeout_s)
    except NotDone:
        return False
    return True

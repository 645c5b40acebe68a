"""The interface between a server and its workers, for asynchronous algorithms: `Caller` and `Server`.

A worker makes one call at a time: a vector and a few numbers go to the server, which serves calls first come, first
served, one at a time, so that a call is atomic. The server may withhold a reply as long as it needs, e.g. until all have called.

    worker                                        server
    reply = caller.call(PUSH, gradient, [3.0])    request = server.receive(timeout_s)
                                                  server.reply(request.caller, DONE, centre, [7.0])

Two transports: over a communicator (over_comm.py), or over ZeroMQ for workers that may join, leave and die
(zmq_server.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Numbers = npt.NDArray[np.float64]


class Request(NamedTuple):
    """A call as the server sees it."""

    caller: int
    """The worker, by a number that is never given to another."""
    kind: int
    tail: Numbers
    vector: Tensor | None
    """Flat, on the host; the server's to read and to change until it replies."""


class Reply(NamedTuple):
    """The answer as the worker sees it."""

    kind: int
    tail: Numbers
    vector: Tensor | None
    """Flat, on the host; valid until the next call."""


class UnknownWorker(Exception):
    """The server does not know this worker (any more): it counted it as dead, or was itself restarted. The call had no effect and
    will have none; the worker may join again, as a new one."""


class Caller(ABC):
    """A worker's end. One thread, one call at a time."""

    number: int

    def empty(self, numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Local: a buffer for vectors that are sent often; the server maps it where the transport can, which saves a copy."""
        return torch.empty(numel, dtype=dtype)

    @abstractmethod
    def post(self, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> None:
        """Local, not blocking: begin a call. The vector belongs to the exchange until `wait_reply` returns, which may leave
        the reply in it."""

    @abstractmethod
    def wait_reply(self, timeout_s: float | None = None) -> Reply:
        """Local, blocking: the reply to the call in progress. TimeoutError after `timeout_s`; it may be called again then."""

    def call(self, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> Reply:
        """Local, blocking: one round trip."""
        self.post(kind, vector, tail)
        return self.wait_reply()

    @abstractmethod
    def close(self) -> None:
        """Local: give back what it holds. Idempotent."""


class Server(ABC):
    """The server's end. One thread."""

    @abstractmethod
    def receive(self, timeout_s: float | None = None) -> Request | None:
        """Local, blocking: the next call, first come, first served; None if there was none in time."""

    def buffer(self, caller: int, numel: int, dtype: torch.dtype) -> Tensor:  # noqa: ARG002 - for transports that map memory
        """Local: a buffer for the vector of the next reply to this caller; a reply formed there need not be copied. It may be the
        memory of the call's vector, which must be read first."""
        return torch.empty(numel, dtype=dtype)

    @abstractmethod
    def reply(self, caller: int, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> None:
        """Local, not blocking: the answer to the call that this caller made. The vector may be changed as soon as this returns."""

    def newly_lost(self) -> Sequence[int]:
        """Local: callers lost since the last call of this method. Always empty where a death ends the whole job."""
        return ()

    def all_await_replies(self) -> bool:
        """Local: whether all callers wait for replies, so that no call can come before one. Known for virtual workers only."""
        return False

    def newly_left(self) -> Sequence[int]:
        """Local: callers that have closed their end since the last call of this method."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Local: give back what it holds. Idempotent."""

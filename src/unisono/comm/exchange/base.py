"""The interface of remote calls between workers and a server, for asynchronous algorithms: `Caller` and `Server`.

A worker makes one call at a time: a vector and a few numbers go to the server, which serves calls first come, first served, one at
a time, so that a call is atomic. The server may withhold a reply as long as it needs, e.g. until all have called.

    worker                                        server
    reply = caller.call(PUSH, gradient, [3.0])    request = server.receive(timeout_s)
                                                  server.reply(request.caller, DONE, centre, [7.0])

Two transports: over a communicator (over_comm.py), or over ZeroMQ for workers that may join, leave and die (zmq_server.py).
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
    """A call of a worker, at the server."""

    caller: int
    """Number of the worker, which no other worker gets later."""
    kind: int
    tail: Numbers
    vector: Tensor | None
    """Flat, on the host; the server may read and change it until it replies."""


class Reply(NamedTuple):
    """The answer to a call, at the worker."""

    kind: int
    tail: Numbers
    vector: Tensor | None
    """Flat, on the host; valid until the next call."""


class UnknownWorker(Exception):
    """Raised where the server does not know this worker (any more): it counted it as dead, or was itself restarted. The call had
    no effect and will have none; the worker may join again, as a new one."""


class Caller(ABC):
    """A worker's end of the exchange. One thread, one call at a time."""

    number: int

    def empty(self, numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Local: returns a buffer for vectors that are sent often; the server maps it where the transport can, which saves a
        copy."""
        return torch.empty(numel, dtype=dtype)

    @abstractmethod
    def post(self, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> None:
        """Local, not blocking: starts a call. The vector belongs to the exchange until `wait_reply` returns, which may leave the
        reply in it."""

    @abstractmethod
    def wait_reply(self, timeout_s: float | None = None) -> Reply:
        """Local, blocking: returns the reply to the call in progress. TimeoutError after `timeout_s`; it may be called again
        then."""

    def call(self, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> Reply:
        """Local, blocking: makes a call and returns its reply."""
        self.post(kind, vector, tail)
        return self.wait_reply()

    @abstractmethod
    def close(self) -> None:
        """Local: releases its resources. Idempotent."""


class Server(ABC):
    """The server's end of the exchange. One thread."""

    @abstractmethod
    def receive(self, timeout_s: float | None = None) -> Request | None:
        """Local, blocking: returns the next call, first come, first served; None if there was none in time."""

    def buffer(self, caller: int, numel: int, dtype: torch.dtype) -> Tensor:  # noqa: ARG002 - for transports that map memory
        """Local: returns a buffer for the vector of the next reply to this caller; a reply that is written there need not be
        copied. It may be the memory of the call's vector, which must be read first."""
        return torch.empty(numel, dtype=dtype)

    @abstractmethod
    def reply(self, caller: int, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> None:
        """Local, not blocking: sends the answer to the call of this caller. The vector may be changed as soon as this returns."""

    def newly_lost(self) -> Sequence[int]:
        """Local: returns the callers lost since the last call of this method. Always empty where a death ends the whole job."""
        return ()

    def all_await_replies(self) -> bool:
        """Local: whether all callers wait for replies, so that no call can come before one. Known for virtual workers only."""
        return False

    def newly_left(self) -> Sequence[int]:
        """Local: returns the callers that have closed their end since the last call of this method."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Local: releases its resources. Idempotent."""

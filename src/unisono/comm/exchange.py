"""Server and workers: the second way to talk, for algorithms that do not keep step.

A worker makes one call at a time: a vector and a few numbers go to the server, which answers when it likes. Service is first come,
first served. Nobody holds a lock between two messages: what the server does with one call is over before it looks at the next, so
a call is atomic. An answer may be withheld for as long as the server needs, e.g. until all have called.

    worker                                        server
    reply = caller.call(PUSH, gradient, [3.0])    request = server.receive(timeout_s)
                                                  server.reply(request.caller, DONE, centre, [7.0])

A carrier brings both ends: over the communicator (exchange_messages.py), or over ZeroMQ for members that may come, go and die
(exchange_zmq.py).
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


class Estranged(Exception):
    """The server does not know this worker: it was counted as dead meanwhile, or the server itself began anew. Its call had no
    effect and will have none; it may join again, as a new worker."""


class Caller(ABC):
    """A worker's end. One thread, one call at a time."""

    number: int

    def empty(self, numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Local: memory for vectors that travel often, seen by the server without a copy where the carrier can."""
        return torch.empty(numel, dtype=dtype)

    @abstractmethod
    def post(self, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> None:
        """Local, not blocking: begin a call. The vector belongs to the exchange until `take` returns, which may leave the answer in
        its place."""

    @abstractmethod
    def take(self, timeout_s: float | None = None) -> Reply:
        """Local, blocking: the answer to the call that was begun. TimeoutError after `timeout_s`, and it may be taken later."""

    def call(self, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> Reply:
        """Local, blocking: one round trip."""
        self.post(kind, vector, tail)
        return self.take()

    @abstractmethod
    def close(self) -> None:
        """Local: give back what it holds. Idempotent."""


class Server(ABC):
    """The server's end. One thread."""

    @abstractmethod
    def receive(self, timeout_s: float | None = None) -> Request | None:
        """Local, blocking: the next call, first come, first served; None if there was none in time."""

    def room(self, caller: int, numel: int, dtype: torch.dtype) -> Tensor:  # noqa: ARG002 - of carriers that map memory
        """Local: memory in which the vector of the next reply to this caller may be formed, so that it need not be copied. Perhaps
        that of its call's vector: read this first."""
        return torch.empty(numel, dtype=dtype)

    @abstractmethod
    def reply(self, caller: int, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> None:
        """Local, not blocking: the answer to the call that this caller made. The vector may be changed as soon as this returns."""

    def lost(self) -> Sequence[int]:
        """Local: callers that are gone since this was last asked. Always empty where a death ends the whole job."""
        return ()

    def is_silent(self) -> bool:
        """Local: whether nobody will call until somebody is answered, which only virtual workers are known to."""
        return False

    def left(self) -> Sequence[int]:
        """Local: callers that said goodbye since this was last asked."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Local: give back what it holds. Idempotent."""

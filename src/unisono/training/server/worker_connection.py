"""How a worker in a process of its own reaches the server: alone, or as a group of processes of which the first one calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns

import numpy as np
import torch
from torch import Tensor

from unisono.algorithms.server.protocol import END
from unisono.algorithms.server.worker import Work, WorkerCall
from unisono.comm.base import Communicator
from unisono.comm.exchange.base import Caller, Reply
from unisono.events import Spans

_FIXED = 4
"""Numbers before the tail: kind, length of the tail, elements of the vector, and whether they are bytes."""


class WorkerLeft(Exception):
    """A stop of this worker was requested: it leaves the run; its unfinished batches are assigned to others."""


@dataclass
class WorkerConnection:
    """Connects one process of a worker to the server. The first process of the group calls; all of them get the reply."""

    group: Communicator
    caller: Caller | None
    """The end towards the server, on the first process of the group."""
    like: Tensor
    """A vector of the length, type and device of those that travel."""
    most_numbers: int
    leave_requested: Callable[[], bool] = bool
    """Called after every reply."""
    spans: Spans | None = None
    _sent: Tensor = field(init=False)

    def __post_init__(self) -> None:
        if self.caller is not None:
            self._sent = self.caller.empty(self.like.numel(), self.like.dtype)
        self._header = torch.zeros(_FIXED + self.most_numbers, dtype=torch.float64, device=self.group.device)

    def out(self) -> Tensor:
        """Local: the vector in which the worker forms what it sends, in memory that the server sees, if that is possible."""
        is_seen = self.caller is not None and self.like.device == self._sent.device
        return self._sent if is_seen else torch.empty_like(self.like)

    def drive(self, work: Work) -> None:
        """Collective over the group, blocking: runs a worker to its end. Raises `WorkerLeft` if it is to leave before that."""
        said = next(work)
        while True:
            began = perf_counter_ns()
            reply = self._call_server(said)
            if self.spans is not None:
                self.spans.add("communication", "call of the server", began, perf_counter_ns())
            if self.leave_requested() and reply.kind != END:
                work.close()
                raise WorkerLeft
            try:
                said = work.send(reply)
            except StopIteration:
                return

    def _call_server(self, said: WorkerCall) -> Reply:
        """Sends the call to the server from the group's first rank, and returns the reply on all of them. Blocking."""
        reply = None
        if self.caller is not None:
            vector = said.vector
            if vector is not None and vector.device != self._sent.device:
                vector = self._sent.copy_(vector) if vector.numel() == self._sent.numel() else vector.cpu()
            reply = self.caller.call(said.kind, vector, said.tail)
        if self.group.size == 1:
            assert reply is not None
            return reply
        return self._share_reply(reply)

    def _share_reply(self, reply: Reply | None) -> Reply:
        """Broadcasts the reply, which the group's first rank gives, and returns it on every rank. Collective, blocking."""
        header = self._header
        if reply is not None:
            vector, tail = reply.vector, torch.from_numpy(reply.tail)
            holds_bytes = vector is not None and vector.dtype == torch.uint8
            header[:_FIXED] = torch.tensor([reply.kind, len(tail), 0 if vector is None else vector.numel(), holds_bytes])
            header[_FIXED : _FIXED + len(tail)] = tail
        self.group.broadcast(header)
        kind, num_tail, numel, is_bytes = (int(number) for number in header[:_FIXED])
        if numel:
            if reply is not None and reply.vector is not None:
                body = reply.vector.to(self.group.device)
            else:
                body = torch.empty(numel, dtype=torch.uint8 if is_bytes else self.like.dtype, device=self.group.device)
            self.group.broadcast(body)
        tail_again = header[_FIXED : _FIXED + num_tail].cpu().numpy().astype(np.float64)
        return Reply(kind, tail_again, body if numel else None)

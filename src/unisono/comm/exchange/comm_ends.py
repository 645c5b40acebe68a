"""Both ends of the exchange over a communicator (over_comm.py opens them and says how they talk)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import monotonic
from typing import NamedTuple

import torch
from torch import Tensor

from unisono.comm.arguments import flat_views
from unisono.comm.base import DTYPES, Call, Communicator, Envelope, Watch, Work
from unisono.comm.exchange.base import Caller, Numbers, Reply, Request, Server
from unisono.comm.exchange.headers import (
    AS_MESSAGE,
    BODY_TAG,
    IN_CALL,
    NO_VECTOR,
    Header,
    ServerHeaders,
    WorkerHeaders,
    is_done,
    read_header,
    write_header,
)
from unisono.comm.exchange.plain_copy import copy_plain
from unisono.comm.polling import CHECK_INTERVAL_S, SHORT_CHECK_INTERVAL_S
from unisono.errors import CommError

_LINE_BYTES = 64
"""Vectors in reserved memory begin at multiples of this."""


class Link:
    """The communicator of one rank's ends of the exchange: waiting that notices lost ranks, and closing."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.num_users = 1
        self.close_limit_s = comm.time_limit_s
        """Time that the server's end may wait at its close for its answers to be received."""
        # As a collective: it needs all members, not only the rank whose message is awaited.
        self._watch = Watch(comm, Call("exchange"), math.inf)

    def flat(self, vector: Tensor) -> Tensor:
        """Returns a vector as a flat view; refuses one that the engine cannot send."""
        (view,) = flat_views(vector, self.comm.device, self.comm.engine)
        return view

    def raise_if_lost(self) -> None:
        """Local: raises `PeerLost` if a rank is lost that the exchange needs."""
        if self.comm.control.lost:
            self._watch.raise_if_lost()

    def finish(self, works: list[Work[None]], timeout_s: float = math.inf) -> None:
        """Blocking: waits for the calls in turn and removes them from the list."""
        until = monotonic() + timeout_s
        while works:
            if is_done(works[0], CHECK_INTERVAL_S):
                works.pop(0)
                continue
            self.raise_if_lost()
            if monotonic() > until:
                where = f"rank {self.comm.rank} of {self.comm.name}"
                raise CommError(f"the exchange on {where} cannot finish: a worker did not receive its reply within {timeout_s:g} s")

    @property
    def has_failed(self) -> bool:
        """Local: whether messages in flight may never end."""
        return self.comm.is_spent or any(not loss.left_cleanly for loss in self.comm.control.lost.values())

    def release(self) -> None:
        """Local: gives up one use of the communicator; the last user closes it."""
        self.num_users -= 1
        if not self.num_users:
            self.comm.close()


class _KeptBuffer:
    """A buffer for the vectors of one worker, kept between calls, as they mostly have the same size."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._held: Tensor | None = None

    def memory(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Returns an uninitialised vector: the last one if size and type are the same, else a new one."""
        if self._held is None or (self._held.numel(), self._held.dtype) != (numel, dtype):
            self._held = self._comm.empty(numel, dtype)
        return self._held


class _MappedMemory:
    """Memory that both ends map, or none. Most vectors in it are at the same place, so the last view is kept."""

    def __init__(self, memory: Tensor | None = None) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8) if memory is None else memory
        self.num_bytes = self._memory.numel()
        self._address = self._memory.data_ptr()
        self._key: tuple[int, int, torch.dtype] | None = None
        self._last = self._memory

    def piece(self, place: int, numel: int, dtype: torch.dtype) -> Tensor:
        """Returns the vector at byte `place` of this memory, without a copy."""
        key = (place, numel, dtype)
        if key != self._key:
            self._last, self._key = self._memory[place : place + numel * dtype.itemsize].view(dtype), key
        return self._last

    def place(self, vector: Tensor) -> int:
        """Returns the position of a vector in this memory, or AS_MESSAGE where it is elsewhere."""
        begin, num_bytes = vector.data_ptr() - self._address, vector.nbytes
        return begin if num_bytes and 0 <= begin <= self.num_bytes - num_bytes else AS_MESSAGE


class MessageCaller(Caller):
    """A worker's end of the exchange over a communicator."""

    def __init__(
        self,
        link: Link,
        server: int,
        number: int,
        headers: WorkerHeaders,
        requests: Tensor | None = None,
        answers: Tensor | None = None,
    ) -> None:
        self.number = number
        self._link = link
        self._server = server
        self._headers = headers
        self._requests, self._answers = _MappedMemory(requests), _MappedMemory(answers)
        self._num_given_bytes = 0
        self._receive_buffer = _KeptBuffer(link.comm)
        self._sends: list[Work[None]] = []
        self._is_calling = False
        self._called: Tensor | None = None
        """The vector of the call in progress."""
        self._body: tuple[Tensor, Work[Envelope]] | None = None
        self._is_closed = False

    def empty(self, numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Local: returns a buffer in memory that the server maps as long as there is some, then in ordinary memory."""
        begin, num_bytes = self._num_given_bytes, numel * dtype.itemsize
        if begin + num_bytes > self._requests.num_bytes:
            return torch.empty(numel, dtype=dtype)
        self._num_given_bytes = -(-(begin + num_bytes) // _LINE_BYTES) * _LINE_BYTES
        return self._requests.piece(begin, numel, dtype)

    def post(self, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> None:
        if self._is_calling:
            raise CommError("a worker makes one call at a time; wait for the last reply first (wait_reply)")
        self._link.raise_if_lost()
        vector = None if vector is None else self._link.flat(vector)
        place = AS_MESSAGE if vector is None else self._requests.place(vector)
        write_header(self._headers.outgoing, kind, vector, place, tail)
        self._is_calling, self._called = True, vector
        self._sends = self._headers.send()
        if vector is not None and vector.numel() and place == AS_MESSAGE:
            self._sends.append(self._link.comm.start_send(vector, self._server, BODY_TAG))

    def wait_reply(self, timeout_s: float | None = None) -> Reply:
        if not self._is_calling:
            raise CommError("there is no call to wait for; post a call first")
        until = math.inf if timeout_s is None else monotonic() + timeout_s
        self._await_reply(self._headers.has_reply, until, timeout_s)
        header, tail = read_header(self._headers.incoming)
        vector = self._reply_vector(header, until, timeout_s)
        self._link.finish(self._sends)  # the server has answered, so it has them
        self._is_calling, self._body = False, None
        return Reply(header.kind, tail, vector)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._link.release()

    def _reply_vector(self, header: Header, until: float, timeout_s: float | None) -> Tensor | None:
        """Blocking: returns the vector of the reply whose header this is; None where it has none."""
        if header.dtype == NO_VECTOR:
            return None
        dtype = DTYPES[header.dtype]
        if header.place == IN_CALL:
            return self._called
        if header.place != AS_MESSAGE:
            return self._answers.piece(header.place, header.numel, dtype)
        if self._body is None:
            memory = self._receive_buffer.memory(header.numel, dtype)
            if not header.numel:
                return memory
            self._body = memory, self._link.comm.start_recv(memory, self._server, BODY_TAG)
        memory, work = self._body
        self._await_reply(lambda slice_s: is_done(work, slice_s), until, timeout_s)
        return memory

    def _await_reply(self, has_reply: Callable[[float], bool], until: float, timeout_s: float | None) -> None:
        """Blocking until `has_reply`; raises `PeerLost`, or `TimeoutError` after the time limit."""
        while not has_reply(max(0.0, min(CHECK_INTERVAL_S, until - monotonic()))):
            self._link.raise_if_lost()
            if monotonic() >= until:
                raise TimeoutError(
                    f"the server (rank {self._server}) did not answer within {timeout_s:g} s; call wait_reply again to wait longer"
                )


class WorkerConnection:
    """The server's buffers and state for one worker."""

    def __init__(self, rank: int, link: Link, requests: Tensor | None = None, answers: Tensor | None = None) -> None:
        self.rank = rank
        self.requests, self.answers = _MappedMemory(requests), _MappedMemory(answers)
        self.receive_buffer, self.outgoing = _KeptBuffer(link.comm), _KeptBuffer(link.comm)
        self.sends: list[Work[None]] = []
        self.is_waiting = False
        """Whether a call of it was received and not answered."""
        self.called: Tensor | None = None
        """The vector of its call, where that is in memory that both map."""


class _PendingRequest(NamedTuple):
    request: Request
    body: Work[Envelope] | None
    """The receive of its vector; None: it has arrived completely."""


class MessageServer(Server):
    """The server's end of the exchange over a communicator. Calls are served in order of arrival; a call whose vector has not
    arrived delays no other."""

    def __init__(self, link: Link, workers: Sequence[WorkerConnection], headers: ServerHeaders) -> None:
        self._link = link
        self._workers = workers
        self._headers = headers
        self._pending: list[_PendingRequest] = []
        """Calls whose header has come, in order."""
        self._is_closed = False

    def receive(self, timeout_s: float | None = None) -> Request | None:
        self._link.raise_if_lost()
        until = math.inf if timeout_s is None else monotonic() + timeout_s
        while (request := self._next()) is None:
            left_s = until - monotonic()
            if left_s <= 0:
                return None
            body = self._pending[0].body if self._pending else None
            if body is None:
                self._headers.wait(min(CHECK_INTERVAL_S, left_s))
            else:  # and check soon whether another call can be served before
                is_done(body, min(SHORT_CHECK_INTERVAL_S, left_s))
            self._link.raise_if_lost()
        self._workers[request.caller].is_waiting = True
        return request

    def buffer(self, caller: int, numel: int, dtype: torch.dtype) -> Tensor:
        """Local: as in the interface, only between `receive` and `reply`, as the worker reads its last answer until it calls
        again. It may be the memory of the call's vector, which is to be read before."""
        return self._reply_buffer(self._unanswered(caller), numel, dtype)

    def reply(self, caller: int, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> None:
        worker = self._unanswered(caller)
        self._link.finish(worker.sends)  # of the last answer, which this worker has had, as it has called again
        place, body = AS_MESSAGE, None
        if vector is not None:
            vector = self._link.flat(vector)
            target = self._reply_buffer(worker, vector.numel(), vector.dtype)
            if target.data_ptr() != vector.data_ptr():
                copy_plain(target, vector)
            if target is worker.called:
                place = IN_CALL
            elif self._is_mapped(worker, vector.nbytes):
                place = 0
            elif vector.numel():
                body = target
        write_header(self._headers.outgoing[caller], kind, vector, place, tail)
        worker.sends = self._headers.send(caller)
        if body is not None:
            worker.sends.append(self._link.comm.start_send(body, worker.rank, BODY_TAG))
        worker.is_waiting = False

    def close(self) -> None:
        """Local, blocking until all answers were received, unless the job has failed."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if not self._link.has_failed:
                for worker in self._workers:
                    self._link.finish(worker.sends, self._link.close_limit_s)
        finally:
            self._link.release()

    def _next(self) -> Request | None:
        """Local, not blocking: returns the first of the calls that have arrived completely."""
        if (call := self._headers.next()) is not None:
            self._start_receiving(*call)
        for position, (request, body) in enumerate(self._pending):
            if body is None or body.done():
                if body is not None:
                    body.wait()
                del self._pending[position]
                return request
        return None

    def _start_receiving(self, caller: int, buf: Numbers) -> None:
        """Local, not blocking: starts to receive the vector of a call whose header has arrived."""
        header, tail = read_header(buf)
        worker, vector, body = self._workers[caller], None, None
        worker.called = None
        if header.dtype != NO_VECTOR:
            dtype = DTYPES[header.dtype]
            if header.place != AS_MESSAGE:
                vector = worker.called = worker.requests.piece(header.place, header.numel, dtype)
            else:
                vector = worker.receive_buffer.memory(header.numel, dtype)
                body = self._link.comm.start_recv(vector, worker.rank, BODY_TAG) if header.numel else None
        self._pending.append(_PendingRequest(Request(caller, header.kind, tail, vector), body))

    def _unanswered(self, caller: int) -> WorkerConnection:
        """Returns the connection of a caller that waits for an answer; raises `CommError` if it does not."""
        if not (0 <= caller < len(self._workers) and self._workers[caller].is_waiting):
            raise CommError(f"caller {caller} is not waiting for an answer; reply once to each call that was received")
        return self._workers[caller]

    def _is_mapped(self, worker: WorkerConnection, num_bytes: int) -> bool:
        """Whether a reply of this size lies in memory that the worker maps."""
        return 0 < num_bytes <= worker.answers.num_bytes

    def _reply_buffer(self, worker: WorkerConnection, numel: int, dtype: torch.dtype) -> Tensor:
        """Returns the memory of the call's vector, if it is as long: it was just read, so it is in this core's cache."""
        if worker.called is not None and (worker.called.numel(), worker.called.dtype) == (numel, dtype):
            return worker.called
        if self._is_mapped(worker, numel * dtype.itemsize):
            return worker.answers.piece(0, numel, dtype)
        self._link.finish(worker.sends)
        return worker.outgoing.memory(numel, dtype)

"""Both ends of the exchange over a communicator (exchange_messages.py opens them and says how they talk)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import monotonic
from typing import NamedTuple

import torch
from torch import Tensor

from unisono.comm.arguments import flat_views
from unisono.comm.base import DTYPES, Call, Communicator, Envelope, Watch, Work
from unisono.comm.exchange import Caller, Numbers, Reply, Request, Server
from unisono.comm.exchange_headers import (
    AS_MESSAGE,
    BODY_TAG,
    IN_CALL,
    NO_VECTOR,
    Header,
    ServerDesk,
    WorkerDesk,
    is_done,
    read_header,
    write_header,
)
from unisono.comm.patience import GLANCE_S, SLICE_S
from unisono.comm.plain_copy import copy_plain
from unisono.errors import CommError

_LINE_BYTES = 64
"""Vectors in reserved memory begin at multiples of this."""


class Line:
    """What both ends do alike: waiting that sees who is gone, and the end."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.num_users = 1
        self.close_limit_s = comm.time_limit_s
        """How long the end may wait for answers to be taken."""
        # As a collective: it needs all members, whoever's message is awaited.
        self._watch = Watch(comm, Call("exchange"), math.inf)

    def flat(self, vector: Tensor) -> Tensor:
        (view,) = flat_views(vector, self.comm.device, self.comm.engine)
        return view

    def raise_if_lost(self) -> None:
        """Local: `PeerLost` if anybody is gone who should not be."""
        if self.comm.control.lost:
            self._watch.raise_if_lost()

    def finish(self, works: list[Work[None]], timeout_s: float = math.inf) -> None:
        """Blocking: wait for them in turn and forget them."""
        until = monotonic() + timeout_s
        while works:
            if is_done(works[0], SLICE_S):
                works.pop(0)
                continue
            self.raise_if_lost()
            if monotonic() > until:
                where = f"rank {self.comm.rank} of {self.comm.name}"
                raise CommError(f"the exchange on {where} cannot end: an answer was not taken within {timeout_s:g} s")

    @property
    def has_failed(self) -> bool:
        """Local: whether messages that are under way may never end."""
        return self.comm.is_spent or any(not loss.in_good_order for loss in self.comm.control.lost.values())

    def leave(self) -> None:
        """Local: the last user closes the communicator."""
        self.num_users -= 1
        if not self.num_users:
            self.comm.close()


class _Landing:
    """Memory for the bodies of one worker; kept, as they mostly have the same size."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._held: Tensor | None = None

    def memory(self, numel: int, dtype: torch.dtype) -> Tensor:
        if self._held is None or (self._held.numel(), self._held.dtype) != (numel, dtype):
            self._held = self._comm.empty(numel, dtype)
        return self._held


class _Mapped:
    """Memory that both ends see, or none. Vectors in it mostly lie at the same place, so the last view is kept."""

    def __init__(self, memory: Tensor | None = None) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8) if memory is None else memory
        self.num_bytes = self._memory.numel()
        self._address = self._memory.data_ptr()
        self._key: tuple[int, int, torch.dtype] | None = None
        self._last = self._memory

    def piece(self, place: int, numel: int, dtype: torch.dtype) -> Tensor:
        key = (place, numel, dtype)
        if key != self._key:
            self._last, self._key = self._memory[place : place + numel * dtype.itemsize].view(dtype), key
        return self._last

    def place(self, vector: Tensor) -> int:
        """Where in here it begins, or that it is elsewhere."""
        begin, num_bytes = vector.data_ptr() - self._address, vector.nbytes
        return begin if num_bytes and 0 <= begin <= self.num_bytes - num_bytes else AS_MESSAGE


class MessageCaller(Caller):
    """A worker's end."""

    def __init__(
        self,
        line: Line,
        server: int,
        number: int,
        desk: WorkerDesk,
        requests: Tensor | None = None,
        answers: Tensor | None = None,
    ) -> None:
        self.number = number
        self._line = line
        self._server = server
        self._desk = desk
        self._requests, self._answers = _Mapped(requests), _Mapped(answers)
        self._num_given_bytes = 0
        self._landing = _Landing(line.comm)
        self._sends: list[Work[None]] = []
        self._is_calling = False
        self._called: Tensor | None = None
        """The vector of the call that is open."""
        self._body: tuple[Tensor, Work[Envelope]] | None = None
        self._is_closed = False

    def empty(self, numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Local: from the memory that the server maps as long as there is some, then ordinary memory."""
        begin, num_bytes = self._num_given_bytes, numel * dtype.itemsize
        if begin + num_bytes > self._requests.num_bytes:
            return torch.empty(numel, dtype=dtype)
        self._num_given_bytes = -(-(begin + num_bytes) // _LINE_BYTES) * _LINE_BYTES
        return self._requests.piece(begin, numel, dtype)

    def post(self, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> None:
        if self._is_calling:
            raise CommError("a worker makes one call at a time; take the answer to the last one first")
        self._line.raise_if_lost()
        vector = None if vector is None else self._line.flat(vector)
        place = AS_MESSAGE if vector is None else self._requests.place(vector)
        write_header(self._desk.outgoing, kind, vector, place, tail)
        self._is_calling, self._called = True, vector
        self._sends = self._desk.send()
        if vector is not None and vector.numel() and place == AS_MESSAGE:
            self._sends.append(self._line.comm.start_send(vector, self._server, BODY_TAG))

    def take(self, timeout_s: float | None = None) -> Reply:
        if not self._is_calling:
            raise CommError("there is no answer to take; post a call first")
        until = math.inf if timeout_s is None else monotonic() + timeout_s
        self._await(self._desk.has_come, until, timeout_s)
        header, tail = read_header(self._desk.incoming)
        vector = self._vector(header, until, timeout_s)
        self._line.finish(self._sends)  # the server has answered, so it has them
        self._is_calling, self._body = False, None
        return Reply(header.kind, tail, vector)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._line.leave()

    def _vector(self, header: Header, until: float, timeout_s: float | None) -> Tensor | None:
        if header.dtype == NO_VECTOR:
            return None
        dtype = DTYPES[header.dtype]
        if header.place == IN_CALL:
            return self._called
        if header.place != AS_MESSAGE:
            return self._answers.piece(header.place, header.numel, dtype)
        if self._body is None:
            memory = self._landing.memory(header.numel, dtype)
            if not header.numel:
                return memory
            self._body = memory, self._line.comm.start_recv(memory, self._server, BODY_TAG)
        memory, work = self._body
        self._await(lambda slice_s: is_done(work, slice_s), until, timeout_s)
        return memory

    def _await(self, has_come: Callable[[float], bool], until: float, timeout_s: float | None) -> None:
        while not has_come(max(0.0, min(SLICE_S, until - monotonic()))):
            self._line.raise_if_lost()
            if monotonic() >= until:
                raise TimeoutError(f"the server (rank {self._server}) did not answer within {timeout_s:g} s; it may be taken later")


class Seat:
    """One worker, at the server."""

    def __init__(self, rank: int, line: Line, requests: Tensor | None = None, answers: Tensor | None = None) -> None:
        self.rank = rank
        self.requests, self.answers = _Mapped(requests), _Mapped(answers)
        self.landing, self.outgoing = _Landing(line.comm), _Landing(line.comm)
        self.sends: list[Work[None]] = []
        self.is_waiting = False
        """Whether its call was received and not answered."""
        self.called: Tensor | None = None
        """Where the vector of its call lies in memory that both map."""


class _Arrival(NamedTuple):
    request: Request
    body: Work[Envelope] | None
    """None: all of it is there."""


class MessageServer(Server):
    """The server's end. Calls are served in the order of their coming; one whose vector is still on its way holds up nobody."""

    def __init__(self, line: Line, seats: Sequence[Seat], desk: ServerDesk) -> None:
        self._line = line
        self._seats = seats
        self._desk = desk
        self._arrivals: list[_Arrival] = []
        """Calls whose header has come, in order."""
        self._is_closed = False

    def receive(self, timeout_s: float | None = None) -> Request | None:
        self._line.raise_if_lost()
        until = math.inf if timeout_s is None else monotonic() + timeout_s
        while (request := self._next()) is None:
            left_s = until - monotonic()
            if left_s <= 0:
                return None
            body = self._arrivals[0].body if self._arrivals else None
            if body is None:
                self._desk.wait(min(SLICE_S, left_s))
            else:  # and look soon again whether another call can be served before
                is_done(body, min(GLANCE_S, left_s))
            self._line.raise_if_lost()
        self._seats[request.caller].is_waiting = True
        return request

    def room(self, caller: int, numel: int, dtype: torch.dtype) -> Tensor:
        """Local: only between `receive` and `reply`, as the worker reads its last answer until it calls again. It may be the memory
        of the call's vector, which is to be read before."""
        return self._room(self._waiting(caller), numel, dtype)

    def reply(self, caller: int, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> None:
        seat = self._waiting(caller)
        self._line.finish(seat.sends)  # of the last answer, which this worker has had, as it has called again
        place, body = AS_MESSAGE, None
        if vector is not None:
            vector = self._line.flat(vector)
            room = self._room(seat, vector.numel(), vector.dtype)
            if room.data_ptr() != vector.data_ptr():
                copy_plain(room, vector)
            if room is seat.called:
                place = IN_CALL
            elif self._is_mapped(seat, vector.nbytes):
                place = 0
            elif vector.numel():
                body = room
        write_header(self._desk.outgoing[caller], kind, vector, place, tail)
        seat.sends = self._desk.send(caller)
        if body is not None:
            seat.sends.append(self._line.comm.start_send(body, seat.rank, BODY_TAG))
        seat.is_waiting = False

    def close(self) -> None:
        """Local, blocking until all answers were taken, unless the job has failed."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if not self._line.has_failed:
                for seat in self._seats:
                    self._line.finish(seat.sends, self._line.close_limit_s)
        finally:
            self._line.leave()

    def _next(self) -> Request | None:
        """Local, not blocking: the first of the calls that are wholly there."""
        if (call := self._desk.next()) is not None:
            self._admit(*call)
        for position, (request, body) in enumerate(self._arrivals):
            if body is None or body.done():
                if body is not None:
                    body.wait()
                del self._arrivals[position]
                return request
        return None

    def _admit(self, caller: int, buf: Numbers) -> None:
        """Local, not blocking: a header has come; begin to receive its body."""
        header, tail = read_header(buf)
        seat, vector, body = self._seats[caller], None, None
        seat.called = None
        if header.dtype != NO_VECTOR:
            dtype = DTYPES[header.dtype]
            if header.place != AS_MESSAGE:
                vector = seat.called = seat.requests.piece(header.place, header.numel, dtype)
            else:
                vector = seat.landing.memory(header.numel, dtype)
                body = self._line.comm.start_recv(vector, seat.rank, BODY_TAG) if header.numel else None
        self._arrivals.append(_Arrival(Request(caller, header.kind, tail, vector), body))

    def _waiting(self, caller: int) -> Seat:
        if not (0 <= caller < len(self._seats) and self._seats[caller].is_waiting):
            raise CommError(f"caller {caller} waits for no answer; it has none, or its call was not received")
        return self._seats[caller]

    def _is_mapped(self, seat: Seat, num_bytes: int) -> bool:
        return 0 < num_bytes <= seat.answers.num_bytes

    def _room(self, seat: Seat, numel: int, dtype: torch.dtype) -> Tensor:
        """Where the call's vector lies, if it is as long: that was read a moment ago, so it is in this core's cache."""
        if seat.called is not None and (seat.called.numel(), seat.called.dtype) == (numel, dtype):
            return seat.called
        if self._is_mapped(seat, numel * dtype.itemsize):
            return seat.answers.piece(0, numel, dtype)
        self._line.finish(seat.sends)
        return seat.outgoing.memory(numel, dtype)

"""Point-to-point messages over TCP, for engines whose own messages lack what is needed.

gloo's cannot be tested for completion or interrupted while they wait; a message longer than the buffer ends the process, a shorter
one is not noticed (PyTorch 2.13). Here:

    short message   EAGER header and bytes in one piece; the receiver keeps them until a matching receive is started
    long message    OFFER header;  the receiver, once it has a matching receive, answers TAKE;  LOAD header and bytes, which are
                    read straight into the receiver's buffer
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from abc import abstractmethod
from dataclasses import dataclass
from time import monotonic

import torch
from torch import Tensor

from unisono.comm.calls import ANY, Envelope
from unisono.comm.driver import T, Work, not_done
from unisono.comm.engines.sockets import SendListener, Sockets, Steps, read_into
from unisono.comm.polling import CHECK_INTERVAL_S, raise_root_cause
from unisono.comm.watch import Watch
from unisono.errors import CommError

EAGER_BYTES = 32 * 1024
"""Longest message that is sent before the receiver asks for it."""

_HEADER = struct.Struct("<BxxxIQQ")
"""Kind, tag, number of the message, bytes of the message (of the receiver's buffer in a REFUSE)."""
_EAGER, _OFFER, _TAKE, _LOAD, _REFUSE = range(5)


class MessageWork(Work[T]):
    """A message in flight. The socket thread ends it."""

    def __init__(self, messages: Messages, view: memoryview, watch: Watch) -> None:
        self.messages = messages
        self.view = view
        self.watch = watch
        self.refusal: str | None = None
        self.error: OSError | EOFError | None = None
        self._over = threading.Event()

    def end(self) -> None:
        """Marks the work as over, which wakes the thread that waits for it."""
        self._over.set()

    def refuse(self, why: str) -> None:
        """Ends the work with a refusal, which `wait` raises as `CommError`."""
        self.refusal = f"{self.watch.call} on rank {self.watch.comm.rank} of {self.watch.comm.name}: {why}"
        self.end()

    def failed(self, error: OSError | EOFError) -> None:
        self.error = error
        self.end()

    def done(self) -> bool:
        return self._over.is_set()

    def wait(self, timeout_s: float | None = None) -> T:
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while not self._over.wait(
            CHECK_INTERVAL_S if deadline is None else min(CHECK_INTERVAL_S, max(0.0, deadline - monotonic()))
        ):
            if deadline is not None and monotonic() >= deadline:
                raise not_done(self.watch.call, timeout_s)
            self.watch.poll()
            if self.cannot_finish():
                raise_root_cause(self.watch, EOFError("the other side closed its communicator"), "its connection")
        if self.refusal is not None:
            raise CommError(self.refusal)
        if self.error is not None:
            raise_root_cause(self.watch, self.error, "its connection")
        return self.result()

    @abstractmethod
    def cannot_finish(self) -> bool:
        """Whether no rank is left that could complete it."""

    @abstractmethod
    def result(self) -> T:
        """Returns the result of finished work."""


class SendWork(MessageWork[None], SendListener):
    """A message that is being sent to `dest`."""

    def __init__(self, messages: Messages, view: memoryview, watch: Watch, dest: int) -> None:
        super().__init__(messages, view, watch)
        self.dest = dest

    def sent(self) -> None:
        self.end()

    def cannot_finish(self) -> bool:
        return False  # the end of the connection fails it

    def result(self) -> None:
        return None


class RecvWork(MessageWork[Envelope]):
    """A receive that waits for its message."""

    def __init__(self, messages: Messages, view: memoryview, watch: Watch, source: int, tag: int) -> None:
        super().__init__(messages, view, watch)
        self.source = source
        self.tag = tag
        self.envelope: Envelope | None = None

    def finish(self, source: int) -> None:
        """Ends the receive, whose message came from `source`."""
        self.envelope = Envelope(source, self.tag)
        self.end()

    def cannot_finish(self) -> bool:
        return self.messages.none_is_left_of(self.source) and not self.done()

    def result(self) -> Envelope:
        assert self.envelope is not None
        return self.envelope


@dataclass(frozen=True)
class _Request(SendListener):
    """A frame that an answer must follow: the message is not done when it was sent."""

    work: SendWork | RecvWork

    def sent(self) -> None:
        pass

    def failed(self, error: OSError | EOFError) -> None:
        self.work.failed(error)


@dataclass(frozen=True)
class _Arrival:
    """A message without a receive, or the offer of one."""

    source: int
    tag: int
    number: int
    num_bytes: int
    payload: bytearray | None


class Messages(Sockets):
    """The messages of one rank of a group."""

    def __init__(self, name: str, rank: int, size: int, host: str) -> None:
        super().__init__(name, rank, host)
        self._others = frozenset(r for r in range(size) if r != rank) or frozenset((rank,))
        self._numbers = itertools.count()
        self._receives: list[RecvWork] = []
        """Receives without a message, in the order of their start."""
        self._arrivals: list[_Arrival] = []
        """Messages without a receive, in the order of their arrival."""
        self._offered: dict[int, SendWork] = {}
        self._loading: dict[tuple[int, int], RecvWork] = {}

    def start_send(self, view: memoryview, dest: int, tag: int, watch: Watch) -> SendWork:
        """Local, not blocking: starts to send a message."""
        work = SendWork(self, view, watch, dest)
        number = next(self._numbers)
        if len(view) <= EAGER_BYTES:
            self.push(dest, [_HEADER.pack(_EAGER, tag, number, len(view)) + view], work)
        else:
            with self.lock:
                self._offered[number] = work
                self.push(dest, [_HEADER.pack(_OFFER, tag, number, len(view))], _Request(work))
        return work

    def start_recv(self, view: memoryview, source: int, tag: int, watch: Watch) -> RecvWork:
        """Local, not blocking: starts to receive a message."""
        work = RecvWork(self, view, watch, source, tag)
        with self.lock:
            for i, arrival in enumerate(self._arrivals):
                if _fits(work, arrival):
                    del self._arrivals[i]
                    self._pair(work, arrival)
                    return work
            self._receives.append(work)
        return work

    def none_is_left_of(self, source: int) -> bool:
        """Local: whether all possible senders have closed their side."""
        return (self._others if source == ANY else {source}) <= self.ended

    def on_send_failed(self, dest: int, error: OSError | EOFError) -> None:
        for number, work in list(self._offered.items()):
            if work.dest == dest:
                del self._offered[number]
                work.failed(error)

    def on_receive_end(self, source: int) -> None:
        # It will never send what it only offered; another rank may still serve a receive from any source.
        with self.lock:
            self._arrivals = [one for one in self._arrivals if one.source != source or one.payload is not None]
            for key in [key for key in self._loading if key[0] == source]:
                self._loading.pop(key).failed(EOFError("connection closed"))

    def read(self, source: int, sock: socket.socket) -> Steps:
        header = bytearray(_HEADER.size)
        while True:
            yield from read_into(sock, memoryview(header))
            kind, tag, number, num_bytes = _HEADER.unpack(header)
            if kind == _EAGER:
                payload = bytearray(num_bytes)
                yield from read_into(sock, memoryview(payload))
                self._arrive(_Arrival(source, tag, number, num_bytes, payload))
            elif kind == _OFFER:
                self._arrive(_Arrival(source, tag, number, num_bytes, None))
            elif kind == _LOAD:
                receive = self._loading.pop((source, number))
                yield from read_into(sock, receive.view)
                receive.finish(source)
            else:
                with self.lock:
                    offered = self._offered.pop(number, None)
                    if offered is None:  # its receiver was lost in the meantime, and the waiting receive was told
                        continue
                    if kind == _TAKE:
                        self.push(source, [_HEADER.pack(_LOAD, tag, number, num_bytes), offered.view], offered)
                    else:
                        offered.refuse(_different_lengths(len(offered.view), source, num_bytes))

    def _arrive(self, arrival: _Arrival) -> None:
        """Gives a message that has arrived to the first receive that matches; keeps it if there is none."""
        with self.lock:
            for i, work in enumerate(self._receives):
                if _fits(work, arrival):
                    del self._receives[i]
                    self._pair(work, arrival)
                    return
            self._arrivals.append(arrival)

    def _pair(self, work: RecvWork, arrival: _Arrival) -> None:
        """Copies a message into the buffer of its receive; a large one, which was only offered, is requested. Refuses another
        length. The lock is held.
        """
        source, number, num_bytes = arrival.source, arrival.number, arrival.num_bytes
        if num_bytes != len(work.view):
            work.refuse(
                f"got a message of {num_bytes} bytes from rank {source}, but its buffer has {len(work.view)}; "
                "send and receive the same number of elements"
            )
            if arrival.payload is None:
                self.push(source, [_HEADER.pack(_REFUSE, arrival.tag, number, len(work.view))])
        elif arrival.payload is not None:
            work.view[:] = arrival.payload
            work.finish(source)
        else:
            self._loading[source, number] = work
            work.watch.sources = (source,)  # from now on nobody else can serve it
            self.push(source, [_HEADER.pack(_TAKE, arrival.tag, number, num_bytes)], _Request(work))


def bytes_of(tensor: Tensor) -> memoryview:
    """Local: returns the memory of a contiguous tensor on the host."""
    return tensor.view(torch.uint8).numpy().data


def _fits(work: RecvWork, arrival: _Arrival) -> bool:
    """Whether a message has the tag of a receive and comes from its source."""
    return work.tag == arrival.tag and work.source in (ANY, arrival.source)


def _different_lengths(num_sent: int, dest: int, num_taken: int) -> str:
    """Returns the message that receiver and sender gave different lengths."""
    return (
        f"rank {dest} has a buffer of {num_taken} bytes for this message of {num_sent}; "
        "send and receive the same number of elements"
    )

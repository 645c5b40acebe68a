"""Connections between the ranks of a group: frames are sent in order, and one thread reads all incoming data.

A connection carries one direction. Rank i opens one to rank j when it has its first frame for j; j answers on its own. The opening
rank shows a secret that the members got through the control plane.
"""

from __future__ import annotations

import hmac
import secrets
import selectors
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from time import monotonic

from unisono.comm.control_plane.channel import set_tcp_options
from unisono.comm.control_plane.guests import Guests

Address = tuple[str, int, bytes]
"""Host, port and secret of a rank."""
Steps = Generator[None, None, None]
"""A reader: a generator that is resumed when its socket has data."""

CONNECT_WAIT_S = 5.0
DRAIN_S = 2.0
"""Time at the end for frames that are still queued to be sent."""

_HELLO = struct.Struct("<16sI")
_TURN_BYTES = 4 << 20
"""After so many bytes it is another connection's turn."""


class SendListener(ABC):
    """Listener that is called when a frame has been sent, or cannot be sent."""

    @abstractmethod
    def sent(self) -> None:
        """Called when the frame has been sent."""

    @abstractmethod
    def failed(self, error: OSError | EOFError) -> None:
        """Called when the frame cannot be sent."""


class Sockets(ABC):
    """The connections of one rank. `push` may be called by any thread; `read` runs on the thread of this object."""

    def __init__(self, name: str, rank: int, host: str) -> None:
        self._rank = rank
        self._host = host
        self.lock = threading.RLock()
        self.ended: set[int] = set()
        """Ranks that have closed their side, seen after everything they had sent."""
        self._secret = secrets.token_bytes(16)
        self._listener: socket.socket | None = None
        self._peers: Sequence[Address] = ()
        self._outgoing: dict[int, _Outgoing] = {}
        self._incoming: set[socket.socket] = set()
        self._errands: deque[Callable[[], object]] = deque()
        """Tasks for our thread, which alone may use the selector."""
        self._selector = selectors.DefaultSelector()
        self._bell, self._button = socket.socketpair()
        self._closing_at: float | None = None
        self._guests: Guests[socket.socket] | None = None
        """Connections that have not shown the secret."""
        self._thread = threading.Thread(target=self._loop, name=f"unisono-sockets-{name}", daemon=True)

    @abstractmethod
    def read(self, source: int, sock: socket.socket) -> Steps:
        """Reads frames from one rank, one after another, for ever; `read_into` reads bytes."""

    @abstractmethod
    def on_send_failed(self, dest: int, error: OSError | EOFError) -> None:
        """Called when the connection to a rank has ended; its frames that were not sent have failed already. The lock is held."""

    @abstractmethod
    def on_receive_end(self, source: int) -> None:
        """Called when a rank has closed its side, after everything that it had sent was read. The lock is not held."""

    def listen(self) -> Address:
        """Local: starts to listen for the others; returns the address with which they connect."""
        family, _, _, _, where = socket.getaddrinfo(self._host, 0, type=socket.SOCK_STREAM)[0]
        self._listener = socket.create_server(where[:2], family=family, backlog=1024)
        return (self._host, self._listener.getsockname()[1], self._secret)

    def open(self, peers: Sequence[Address]) -> None:
        """Local, after `listen`: starts the communication with `peers`, the addresses by rank."""
        assert self._listener is not None
        self._peers = peers
        self._guests = Guests(self._listener, self._selector, self._accept, len(peers), self._drop)
        self._bell.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ, self._run_errands)
        self._thread.start()

    def push(self, dest: int, frames: Sequence[bytes | memoryview], piece: SendListener | None = None) -> None:
        """Not blocking (except for the first frame to a rank): sends in order what the kernel accepts now and queues the rest.
        `piece` belongs to the last of the frames."""
        with self.lock:
            try:
                outgoing = self._outgoing.get(dest) or self._connect(dest)
            except OSError as error:
                if piece is not None:
                    piece.failed(error)
                return
            last = len(frames) - 1
            outgoing.queue.extend((memoryview(frame), piece if i == last else None) for i, frame in enumerate(frames))
            if len(outgoing.queue) == len(frames):
                outgoing.flush()
            if outgoing.queue:
                self._run_on_thread(outgoing.show_interest)

    def close(self) -> None:
        """Blocking for a short time: sends what is queued, then ends all connections and the thread. Idempotent."""
        if self._closing_at is None:
            self._closing_at = monotonic() + DRAIN_S
            if self._thread.is_alive():
                self._run_on_thread(lambda: None)
                self._thread.join()
            for outgoing in self._outgoing.values():
                outgoing.sock.close()
            for sock in (*self._incoming, self._bell, self._button):
                sock.close()
            if self._listener is not None:
                self._listener.close()
            self._selector.close()

    # ---- our own thread --------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        """Body of the thread: handles events of all sockets until they are closed and nothing is queued."""
        assert self._guests is not None
        while self._closing_at is None or (self._has_queued() and monotonic() < self._closing_at):
            wait_s = self._guests.wait_s() if self._closing_at is None else 0.05
            for key, events in self._selector.select(None if wait_s == float("inf") else wait_s):
                key.data(events)
            self._guests.check()

    def _has_queued(self) -> bool:
        """Whether frames wait to be sent."""
        with self.lock:
            return any(outgoing.queue for outgoing in self._outgoing.values())

    def _run_on_thread(self, errand: Callable[[], object]) -> None:
        """Not blocking: lets our thread run a task."""
        self._errands.append(errand)
        with suppress(BlockingIOError):  # it rings already
            self._button.send(b"!", socket.MSG_DONTWAIT)

    def _run_errands(self, _events: int) -> None:
        """On our thread: runs the tasks of other threads."""
        self._bell.recv(4096)
        while self._errands:
            self._errands.popleft()()

    def _accept(self, _events: int) -> None:
        """On our thread: accepts a connection and starts to authenticate it."""
        assert self._guests is not None
        visit = self._guests.accept()
        if visit is not None:
            visit.sock.setblocking(False)
            self._guests.add(visit.sock)
            self._incoming.add(visit.sock)
            steps = self._authenticate(visit.sock)
            self._selector.register(visit.sock, selectors.EVENT_READ, lambda _: self._resume_reader(visit.sock, steps))

    def _resume_reader(self, sock: socket.socket, steps: Steps) -> None:
        """On our thread: resumes the reader of a socket that has data; closes the socket at its end."""
        if sock not in self._incoming:  # it was dropped a moment ago
            return
        try:
            next(steps)
        except (OSError, EOFError, StopIteration):
            self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        """On our thread: closes an incoming connection."""
        assert self._guests is not None
        self._guests.remove(sock)
        self._selector.unregister(sock)
        self._incoming.discard(sock)
        sock.close()

    def _authenticate(self, sock: socket.socket) -> Steps:
        """Steps that read and check the hello of a peer, then its frames until it closes."""
        hello = bytearray(_HELLO.size)
        yield from read_into(sock, memoryview(hello))
        secret, source = _HELLO.unpack(hello)
        if not hmac.compare_digest(secret, self._secret) or source >= len(self._peers):
            return
        assert self._guests is not None
        self._guests.remove(sock)
        try:
            yield from self.read(source, sock)
        finally:
            self.ended.add(source)
            self.on_receive_end(source)

    # ---- sending; the lock is held ---------------------------------------------------------------------------------

    def _connect(self, dest: int) -> _Outgoing:
        """Blocking: connects to a rank, sends the hello and returns the connection for frames to it."""
        host, port, secret = self._peers[dest]
        sock = socket.create_connection((host, port), timeout=CONNECT_WAIT_S)
        set_tcp_options(sock)
        sock.sendall(_HELLO.pack(secret, self._rank))
        sock.setblocking(False)
        outgoing = self._outgoing[dest] = _Outgoing(self, dest, sock, self._selector)
        self._run_on_thread(outgoing.show_interest)
        return outgoing


class _Outgoing:
    """The connection and queue of frames to one rank."""

    def __init__(self, sockets: Sockets, dest: int, sock: socket.socket, selector: selectors.BaseSelector) -> None:
        self.sock = sock
        self.queue: deque[tuple[memoryview, SendListener | None]] = deque()
        self._sockets = sockets
        self._dest = dest
        self._selector = selector
        self._error: OSError | EOFError | None = None

    def flush(self) -> None:
        """Not blocking: sends as much as the kernel accepts. The lock is held."""
        budget = _TURN_BYTES
        try:
            while self.queue and budget > 0:
                if self._error is not None:
                    raise self._error
                frame, piece = self.queue[0]
                num_sent = self.sock.send(frame[:_TURN_BYTES])
                budget -= num_sent
                if num_sent < len(frame):
                    self.queue[0] = (frame[num_sent:], piece)
                    continue
                self.queue.popleft()
                if piece is not None:
                    piece.sent()
        except BlockingIOError:
            return
        except (OSError, EOFError) as error:
            self._fail(error)

    def show_interest(self) -> None:
        """On our thread: watches for the end of the other side and, while frames are queued, for writability."""
        with self._sockets.lock:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.queue else 0)
            known = self._selector.get_map().get(self.sock)
            if self._error is not None:
                if known is not None:
                    self._selector.unregister(self.sock)
            elif known is None:
                self._selector.register(self.sock, events, self._on_event)
            elif known.events != events:
                self._selector.modify(self.sock, events, self._on_event)

    def _on_event(self, events: int) -> None:
        """On our thread: notices the end of the other side, or sends more."""
        with self._sockets.lock:
            if events & selectors.EVENT_READ:  # nothing is ever sent this way, so this is the end
                try:
                    self._fail(EOFError("connection closed") if not self.sock.recv(1) else EOFError("unexpected bytes"))
                except OSError as error:
                    self._fail(error)
            if events & selectors.EVENT_WRITE:
                self.flush()
            self.show_interest()

    def _fail(self, error: OSError | EOFError) -> None:
        """Drops the queued frames, whose listeners learn the error."""
        self._error = error
        while self.queue:
            _, piece = self.queue.popleft()
            if piece is not None:
                piece.failed(error)
        self._sockets.on_send_failed(self._dest, error)


def read_into(sock: socket.socket, view: memoryview) -> Steps:
    """Steps that read exactly as many bytes as `view` has; raises `EOFError` at the end."""
    while view:
        try:
            num_read = sock.recv_into(view[:_TURN_BYTES])
        except BlockingIOError:
            yield
            continue
        if not num_read:
            raise EOFError("connection closed")
        view = view[num_read:]
        if view:
            yield

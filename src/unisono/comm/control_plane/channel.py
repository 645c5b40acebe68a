"""Whole messages over one non-blocking socket: what cannot be sent now waits in a queue for the thread that serves the socket."""

from __future__ import annotations

import select
import socket
import struct
import sys
import threading
from collections import deque
from time import monotonic

from unisono.errors import CommError

KEEPALIVE_IDLE_S = 5
KEEPALIVE_INTERVAL_S = 2
KEEPALIVE_PROBES = 3
SILENCE_S = KEEPALIVE_IDLE_S + KEEPALIVE_PROBES * KEEPALIVE_INTERVAL_S
"""A host that has not answered for this long counts as lost."""

UNAUTHENTICATED_LIMIT_BYTES = 64 * 1024
"""Longest message of a peer that has not yet been authenticated as a member of the job."""
AUTHENTICATED_LIMIT_BYTES = 1 << 40

_HEADER = struct.Struct("<Q")
_READ_BYTES = 1 << 20
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)


class Channel:
    """Messages in order over a stream socket. `send` may be called by any thread; the rest belongs to one thread."""

    def __init__(self, sock: socket.socket, limit_bytes: int = UNAUTHENTICATED_LIMIT_BYTES) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.limit_bytes = limit_bytes
        self.ended = False
        """Whether the other side sends no more."""
        self._incoming = bytearray()
        self._whole: list[bytes] = []
        self._outgoing: deque[memoryview] = deque()
        self._lock = threading.Lock()
        self._finish = False
        self._broken = False

    @property
    def has_unsent(self) -> bool:
        """Whether messages are queued until the socket accepts more (`flush`)."""
        return bool(self._outgoing)

    def send(self, message: bytes) -> None:
        """Not blocking: sends what the socket accepts now and queues the rest. On a broken connection the message is dropped,
        and `receive` reports the end."""
        header = _HEADER.pack(len(message))
        with self._lock:
            if len(message) < UNAUTHENTICATED_LIMIT_BYTES:  # one piece is one packet and one system call
                self._outgoing.append(memoryview(header + message))
            else:
                self._outgoing.extend((memoryview(header), memoryview(message)))
            self._send_queued()

    def flush(self) -> None:
        """Not blocking: sends what was queued, as far as the socket accepts it."""
        with self._lock:
            self._send_queued()

    def end_sending(self) -> None:
        """Not blocking: ends sending; the other side sees the end after all that is queued."""
        with self._lock:
            self._finish = True
            self._send_queued()

    def receive(self) -> list[bytes]:
        """Not blocking: returns the messages that have arrived completely. Sets `ended` at the end; raises `OSError` if the
        connection broke and `CommError` for a message longer than allowed."""
        self._read_socket()
        messages, self._whole = self._whole, []
        return messages

    def receive_one(self, deadline: float) -> bytes:
        """Blocking: returns the next message; raises `TimeoutError` at the deadline (monotonic clock) and `EOFError` at the end."""
        poller = select.poll()
        poller.register(self.sock, select.POLLIN)
        while not self._whole:
            if self.ended:
                raise EOFError("the connection was closed")
            left_s = deadline - monotonic()
            if left_s <= 0:
                raise TimeoutError("no answer in time")
            if poller.poll(min(left_s, 60) * 1000):  # a limit may be longer than poll can count
                self._read_socket()
        return self._whole.pop(0)

    def is_silent(self) -> bool:
        """Whether the other host has not answered for `SILENCE_S` although something was sent to it."""
        return not self.ended and _host_is_silent(self.sock)

    def close(self) -> None:
        """Closes the socket once no send is under way."""
        with self._lock:  # a send that is under way must not meet another file under the same number
            self.sock.close()

    def abandon(self) -> None:
        """In a forked child: closes this copy of the socket; the lock may be held by a thread that does not exist here."""
        self._lock = threading.Lock()
        self.sock.close()

    def _read_socket(self) -> None:
        """Not blocking: reads what has arrived and keeps the whole messages in it; raises `CommError` for one that is too long."""
        try:
            data = self.sock.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        self.ended = not data
        self._incoming += data
        while len(self._incoming) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._incoming)
            if length > self.limit_bytes:
                raise CommError(f"a message of {length} bytes was announced, but at most {self.limit_bytes} are allowed")
            end = _HEADER.size + length
            if len(self._incoming) < end:
                break
            with memoryview(self._incoming) as view:
                self._whole.append(bytes(view[_HEADER.size : end]))
            del self._incoming[:end]

    def _send_queued(self) -> None:
        """Not blocking: sends queued messages until the socket accepts no more; on a broken connection they are dropped. The lock
        is held.
        """
        try:
            while self._outgoing and not self._broken:
                piece = self._outgoing[0]
                sent = self.sock.send(piece, _NO_SIGNAL)
                if sent == len(piece):
                    self._outgoing.popleft()
                else:
                    self._outgoing[0] = piece[sent:]
            if self._finish and not self._broken:
                self.sock.shutdown(socket.SHUT_WR)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._broken = True  # the reading side learns of the same end, and says so
        if self._broken:
            self._outgoing.clear()


def set_tcp_options(sock: socket.socket) -> None:
    """Makes a socket send small messages at once, and notice a host that has vanished (keepalive).

    There are no heartbeats of our own: a process whose interpreter is busy (a long call that holds the lock, a debugger, a
    suspended job) could not answer, yet it is not dead. The kernel answers keepalive probes in its place.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "darwin":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPALIVE, KEEPALIVE_IDLE_S)
    else:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


def _host_is_silent(sock: socket.socket) -> bool:
    """Whether a host has not acknowledged data for too long. Keepalive rests while data is unacknowledged, so that case is checked
    here.

    TCP_USER_TIMEOUT would do it in the kernel, but it also cuts the connection to a living process that has not read for a while
    and whose receive window is full: the very process that is only busy.
    """
    if sys.platform != "linux" or sock.family == socket.AF_UNIX:
        return False
    # struct tcp_info, whose beginning never changes: 8 bytes (3rd retransmits, 4th probes) and 32-bit numbers (5th unacked,
    # 13th milliseconds since the last acknowledgement came).
    info = struct.unpack("=8B13I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 60))
    retransmits, probes, unacked, last_ack_ms = int(info[2]), int(info[3]), int(info[12]), int(info[20])
    unanswered = max(retransmits if unacked else 0, probes)
    return unanswered >= KEEPALIVE_PROBES and last_ack_ms >= SILENCE_S * 1000

"""The driver's end of the connections to its workers: sockets that never block, accepted only from processes that know the job's
secret."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from typing import Any

from unisono.comm.control_plane.channel import AUTHENTICATED_LIMIT_BYTES, Channel, set_tcp_options
from unisono.comm.control_plane.handshake import Challenge, HandshakeFailed, Pass
from unisono.comm.control_plane.plain import decode, encode
from unisono.errors import CommError

MOST_UNAUTHENTICATED = 256
"""Connections before authentication; the oldest is closed when one more comes."""

OnMessage = Callable[[int, Any], None]
"""Called with the number of a worker and its message."""


class Service:
    """The server of the driver. Local; everything happens in the thread of the driver, which waits on the selector."""

    def __init__(self, selector: selectors.BaseSelector, secret: str, everywhere: bool, on_message: OnMessage) -> None:
        """`everywhere`: listen on all interfaces, as workers may be on other hosts."""
        self._selector = selector
        self._secret = secret
        self._on_message = on_message
        self._listener = _listener(everywhere)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._unauthenticated: list[_WorkerConnection] = []
        self._workers: dict[int, _WorkerConnection] = {}
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def send(self, worker: int, *message: Any) -> None:
        """Sends a message to a worker; it is lost where the worker is not connected. Local, not blocking."""
        connection = self._workers.get(worker)
        if connection is not None:
            connection.send(encode(message))

    def forget(self, worker: int) -> None:
        """Closes the connection of a worker that has ended. Local."""
        connection = self._workers.pop(worker, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Closes all connections. Local."""
        for connection in (*self._unauthenticated, *self._workers.values()):
            connection.close()
        self._selector.unregister(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        """Accepts a connection, which must authenticate; closes the oldest of the unauthenticated ones if there are too many."""
        try:
            sock, _ = self._listener.accept()
            set_tcp_options(sock)
        except OSError:  # the visitor went away again
            return
        if len(self._unauthenticated) >= MOST_UNAUTHENTICATED:
            self._unauthenticated.pop(0).close()
        self._unauthenticated.append(_WorkerConnection(sock, Challenge(Pass(self._secret), self.port), self._selector, self))

    def admit(self, connection: _WorkerConnection, worker: int) -> None:
        """Registers an authenticated connection as that of a worker. Raises `HandshakeFailed` if the worker is connected already:
        another program has its variables. Local."""
        if worker in self._workers:
            raise HandshakeFailed(f"worker {worker} is already connected")
        self._unauthenticated.remove(connection)
        self._workers[worker] = connection
        connection.send(encode(("welcome",)))

    def drop(self, connection: _WorkerConnection) -> None:
        """Removes a connection that has ended. Whether the worker has ended too is for its process to tell. Local."""
        connection.close()
        if connection in self._unauthenticated:
            self._unauthenticated.remove(connection)
        if connection.worker is not None and self._workers.get(connection.worker) is connection:
            del self._workers[connection.worker]

    def on_message(self, worker: int, message: Any) -> None:
        """Passes on the message of a worker. Local."""
        self._on_message(worker, message)


class _WorkerConnection:
    """One connection, before and after its authentication."""

    def __init__(self, sock: socket.socket, challenge: Challenge, selector: selectors.BaseSelector, service: Service) -> None:
        self.worker: int | None = None
        self._channel = Channel(sock)
        self._challenge = challenge
        self._selector = selector
        self._service = service
        self._closed = False
        selector.register(sock, selectors.EVENT_READ, self._serve)

    def send(self, message: bytes) -> None:
        """Sends bytes to the worker, later if the socket is full now. Not blocking."""
        self._channel.send(message)
        self._watch_socket()

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        if not self._closed:
            self._closed = True
            self._selector.unregister(self._channel.sock)
            self._channel.close()

    def _watch_socket(self) -> None:
        """Makes the selector call `_serve` when the socket can be read, or written while something is unsent."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._channel.has_unsent else 0)
        self._selector.modify(self._channel.sock, events, self._serve)

    def _serve(self) -> None:
        """Sends and receives what is possible now; a connection that has ended or failed is dropped."""
        if self._closed:
            return
        try:
            self._channel.flush()
            for message in self._channel.receive():
                self._handle_message(message)
        except (OSError, CommError, HandshakeFailed):
            self._service.drop(self)
            return
        if self._channel.ended:
            self._service.drop(self)
        elif not self._closed:
            self._watch_socket()

    def _handle_message(self, message: bytes) -> None:
        """Takes the next step of the authentication, or passes on the message of an authenticated worker."""
        if self.worker is not None:
            self._service.on_message(self.worker, decode(message))
        elif not self._challenge.answered:
            self.send(self._challenge.answer(message))
        else:
            match self._challenge.verify(message):
                case {"worker": int(worker)}:
                    self._service.admit(self, worker)
                    self.worker = worker
                    self._channel.limit_bytes = AUTHENTICATED_LIMIT_BYTES
                case _:
                    raise HandshakeFailed("the greeting names no worker")


def _listener(everywhere: bool) -> socket.socket:
    """Returns a listening socket on a free port, of this machine only or of all its interfaces."""
    if not everywhere:
        return socket.create_server(("127.0.0.1", 0), backlog=1024)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=1024)

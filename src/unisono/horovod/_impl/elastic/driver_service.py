"""The driver's end of the connections to its workers: sockets that never block, accepted only from processes that know the job's
secret."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from unisono.comm.control_plane.channel import AUTHENTICATED_LIMIT_BYTES, Channel
from unisono.comm.control_plane.guests import Guests
from unisono.comm.control_plane.handshake import Challenge, HandshakeFailed
from unisono.comm.control_plane.job_pass import Pass
from unisono.comm.control_plane.plain import decode, encode
from unisono.errors import CommError

OnMessage = Callable[[int, Any], None]
"""Called with the number of a worker and its message."""


class Service:
    """The server of the driver. Local; everything happens in the thread of the driver, which waits on the selector."""

    def __init__(self, selector: selectors.BaseSelector, secret: str, num_workers: int, on_message: OnMessage) -> None:
        """`num_workers` is how many may connect at once."""
        self._selector = selector
        self._secret = secret
        self._num_workers = num_workers
        self._on_message = on_message
        self._guests: dict[int, Guests[_WorkerConnection]] = {}
        """By port."""
        self._ports: dict[bool, int] = {}
        """Of loopback (False) and of all interfaces (True), each opened at first use."""
        self._workers: dict[int, _WorkerConnection] = {}

    def port(self, everywhere: bool) -> int:
        """Returns the port for workers of this machine or, with `everywhere`, of other hosts; listens there from now on. Local."""
        if everywhere not in self._ports:
            listener = _listener(everywhere)
            port = self._ports[everywhere] = listener.getsockname()[1]
            self._guests[port] = Guests(
                listener, self._selector, partial(self._accept, port), self._num_workers, _WorkerConnection.close
            )
        return self._ports[everywhere]

    def check(self) -> None:
        """Drops connections that have not authenticated in time. Called at intervals. Local."""
        for guests in self._guests.values():
            guests.check()

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
        for guests in self._guests.values():
            guests.close()
        for connection in self._workers.values():
            connection.close()

    def _accept(self, port: int) -> None:
        """Accepts a connection, which must authenticate."""
        visit = self._guests[port].accept()
        if visit is not None:
            challenge = Challenge(Pass(self._secret), port)
            self._guests[port].add(_WorkerConnection(visit.sock, challenge, self._selector, self))

    def admit(self, connection: _WorkerConnection, worker: int) -> None:
        """Registers an authenticated connection as that of a worker. Raises `HandshakeFailed` if the worker is connected already:
        another program has its variables. Local."""
        if worker in self._workers:
            raise HandshakeFailed(f"worker {worker} is already connected")
        self._remove_guest(connection)
        self._workers[worker] = connection
        connection.send(encode(("welcome",)))

    def drop(self, connection: _WorkerConnection) -> None:
        """Removes a connection that has ended. Whether the worker has ended too is for its process to tell. Local."""
        connection.close()
        self._remove_guest(connection)
        if connection.worker is not None and self._workers.get(connection.worker) is connection:
            del self._workers[connection.worker]

    def _remove_guest(self, connection: _WorkerConnection) -> None:
        """Removes a connection from those that have not authenticated."""
        for guests in self._guests.values():
            guests.remove(connection)

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

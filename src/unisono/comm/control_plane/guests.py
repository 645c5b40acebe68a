"""The connections to a listening port that have not yet proved who they are: few, and each for a short time.

Everybody on a shared node can connect to any port, and a connection takes one of the files that a process may open. So a port has
few guests: one more drops the oldest, each must prove itself in time, and where no file is left, no connection is accepted for a
moment.
"""

from __future__ import annotations

import errno
import selectors
import socket
from collections.abc import Callable
from time import monotonic
from typing import Generic, NamedTuple, TypeVar

from unisono.comm.control_plane.channel import set_tcp_options
from unisono.comm.control_plane.meeting import plain_address

GREETING_WAIT_S = 5.0
"""Time in which a guest must prove that it belongs to the job."""
SPARE_GUESTS = 16
"""Guests beside the members that are expected."""
ACCEPT_PAUSE_S = 0.1
"""Time for which no connection is accepted when this process can open no more files."""

T = TypeVar("T")


class Visit(NamedTuple):
    """A connection that was accepted."""

    sock: socket.socket
    here: str
    there: str
    """The numeric addresses of both ends."""


class Guests(Generic[T]):
    """The guests of one port. Local, not blocking; belongs to the thread of its selector, which calls `accept` when the listener
    can be read, and `check` after it has waited for `wait_s` at most."""

    def __init__(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        data: object,
        num_expected: int,
        drop: Callable[[T], object],
    ) -> None:
        """`data` is what the selector returns for the listener; `drop` closes the connection of a guest whose time is over."""
        listener.setblocking(False)
        self.problem = ""
        """Why a connection could not be accepted; empty if that never happened."""
        self._listener = listener
        self._selector = selector
        self._data = data
        self._most = SPARE_GUESTS + num_expected
        self._drop = drop
        self._deadlines: dict[T, float] = {}
        self._accept_again_at = float("inf")
        selector.register(listener, selectors.EVENT_READ, data)

    @property
    def all(self) -> tuple[T, ...]:
        """All guests of this moment."""
        return tuple(self._deadlines)

    @property
    def is_open(self) -> bool:
        """Whether the port still listens."""
        return self._listener.fileno() >= 0

    def accept(self) -> Visit | None:
        """Returns the next connection, which must become a guest (`add`); None if there is none, or no file for it."""
        if not self.is_open:  # it was closed a moment ago
            return None
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self.problem = f"cannot accept more connections: {error.strerror}, raise ulimit -n"
                self._drop_oldest()
                self._selector.unregister(self._listener)  # the visitor stays in the queue, and would wake us without end
                self._accept_again_at = monotonic() + ACCEPT_PAUSE_S
            return None
        if len(self._deadlines) >= self._most:
            self._drop_oldest()
        try:
            set_tcp_options(sock)
            return Visit(sock, plain_address(sock.getsockname()[0]), plain_address(sock.getpeername()[0]))
        except OSError:  # the visitor went away again
            sock.close()
            return None

    def add(self, guest: T, limit_s: float | None = None) -> None:
        """Adds a guest, which is dropped after `limit_s` (`GREETING_WAIT_S`) unless it is removed before."""
        self._deadlines[guest] = monotonic() + (GREETING_WAIT_S if limit_s is None else limit_s)

    def remove(self, guest: T) -> None:
        """Removes a guest that has proved who it is, or is gone."""
        self._deadlines.pop(guest, None)

    def wait_s(self) -> float:
        """Returns the seconds until `check` has something to do; infinite if there is nothing."""
        return max(0.0, min((self._accept_again_at, *self._deadlines.values())) - monotonic())

    def check(self) -> None:
        """Drops the guests whose time is over, and accepts connections again after a pause."""
        now = monotonic()
        for guest, deadline in tuple(self._deadlines.items()):
            if now >= deadline:
                self._end(guest)
        if now >= self._accept_again_at and self.is_open:
            self._accept_again_at = float("inf")
            self._selector.register(self._listener, selectors.EVENT_READ, self._data)

    def close(self) -> None:
        """Closes the port and drops all guests. Idempotent."""
        if self.is_open:
            if self._accept_again_at == float("inf"):
                self._selector.unregister(self._listener)
            self._accept_again_at = float("inf")
            self._listener.close()
        for guest in self.all:
            self._end(guest)

    def abandon(self) -> None:
        """In a forked child: closes this copy of the listener; the selector is the parent's."""
        self._listener.close()

    def _drop_oldest(self) -> None:
        """Drops the guest with the earliest deadline, if there is one with a deadline."""
        oldest = min(self._deadlines, key=self._deadlines.__getitem__, default=None)
        if oldest is not None and self._deadlines[oldest] < float("inf"):
            self._end(oldest)

    def _end(self, guest: T) -> None:
        """Drops a guest."""
        self.remove(guest)
        self._drop(guest)

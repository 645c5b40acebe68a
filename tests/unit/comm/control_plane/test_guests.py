"""A listening port under strangers: few of them, for a short time, and none where no file is left."""

from __future__ import annotations

import os
import resource
import selectors
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from time import monotonic

import pytest

from unisono.comm.control_plane import guests
from unisono.comm.control_plane.guests import SPARE_GUESTS, Guests

LIMIT_S = 20.0


class Port:
    """A port with its guests, and the strangers who connect to it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.selector = stack.enter_context(selectors.DefaultSelector())
        self.listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=256))
        self.dropped: list[socket.socket] = []
        self.guests: Guests[socket.socket] = Guests(self.listener, self.selector, self._accept, 2, self._drop)
        stack.callback(self.guests.close)

    def _accept(self) -> None:
        visit = self.guests.accept()
        if visit is not None:
            assert visit.here == visit.there == "127.0.0.1"
            self._stack.callback(visit.sock.close)
            self.guests.add(visit.sock)

    def _drop(self, guest: socket.socket) -> None:
        self.dropped.append(guest)
        guest.close()

    def stranger(self) -> socket.socket:
        return self._stack.enter_context(socket.create_connection(self.listener.getsockname(), LIMIT_S))

    def serve_until(self, holds: Callable[[], bool]) -> int:
        """How often the selector woke us until it holds."""
        deadline, num_woken = monotonic() + LIMIT_S, 0
        while not holds():
            assert monotonic() < deadline
            found = self.selector.select(min(0.5, self.guests.wait_s()))
            num_woken += bool(found)
            for key, _ in found:
                key.data()
            self.guests.check()
        return num_woken


@pytest.fixture
def port() -> Iterator[Port]:
    with ExitStack() as stack:
        yield Port(stack)


def test_one_more_than_may_be_there_drops_the_oldest(port: Port) -> None:
    most = SPARE_GUESTS + 2
    strangers = [port.stranger() for _ in range(most + 30)]
    port.serve_until(lambda: len(port.dropped) == 30)
    assert len(port.guests.all) == most
    assert all(sock.recv(1) == b"" for sock in strangers[:30]), "the first were dropped"


def test_a_guest_that_does_not_prove_who_it_is_is_dropped_in_time(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "GREETING_WAIT_S", 0.2)
    port.stranger()
    port.serve_until(lambda: len(port.guests.all) == 1)
    member = port.guests.all[0]
    port.guests.remove(member)
    port.stranger()
    port.serve_until(lambda: len(port.dropped) == 1)
    assert member not in port.dropped
    assert port.guests.wait_s() == float("inf")


def test_where_no_file_is_left_it_pauses_and_goes_on(port: Port) -> None:
    """Without the pause the visitor, who stays in the queue, would wake us without end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    stranger = port.stranger()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))  # noqa: PTH208 -- no object is to be made
    fillers = []
    try:
        while True:  # numbers between the open ones
            fillers.append(os.dup(0))
    except OSError:
        pass
    try:
        port.serve_until(lambda: bool(port.guests.problem))
        assert list(port.guests.all) == []
        assert port.selector.select(0) == []
        assert port.guests.wait_s() <= guests.ACCEPT_PAUSE_S
    finally:
        for number in fillers:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert port.guests.problem == "cannot accept more connections: Too many open files, raise ulimit -n"
    port.serve_until(lambda: len(port.guests.all) == 1)
    assert port.guests.all[0].getpeername() == stranger.getsockname()


def test_a_closed_port_drops_its_guests_and_accepts_nobody(port: Port) -> None:
    sock = port.stranger()
    port.serve_until(lambda: len(port.guests.all) == 1)
    port.guests.close()
    port.guests.close()
    assert sock.recv(1) == b""
    assert (port.guests.accept(), port.guests.all, port.guests.is_open) == (None, (), False)

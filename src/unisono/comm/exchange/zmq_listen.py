"""The listening address of a server of the exchange: the last port if it is free, as its workers try that first."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from unisono.comm.exchange.zmq_keys import Pair
from unisono.errors import UsageError

if TYPE_CHECKING:
    import zmq

PORT_WAIT_S = 1.0
"""Time that a restarted server waits for its port, which a worker that tries to connect may hold for a moment."""


def listen(router: zmq.Socket[bytes], host: str, port: int, last: str | None, say: Callable[[str], object]) -> str:
    """Local, blocking for a short time: binds the socket and returns its address, host:port. Port 0 is that of the address
    `last`, or any; another one is taken or refused."""
    import zmq

    host = _numeric(host)
    wanted = port or (int(last.rpartition(":")[2]) if last else 0)
    deadline = monotonic() + PORT_WAIT_S
    while not _try_to_listen(router, host, wanted):
        if monotonic() < deadline:
            time.sleep(0.05)
        elif port or not wanted:
            raise UsageError(f"port {wanted or '(any)'} of {host} is taken by another program; give another port, or 0 for any")
        else:
            say(f"port {wanted} of {host} is now used by another program; the server chooses another port")
            wanted = 0
    return router.get_string(zmq.LAST_ENDPOINT).rstrip("\0").removeprefix("tcp://")


def _try_to_listen(router: zmq.Socket[bytes], host: str, port: int) -> bool:
    """Binds the socket; returns False if the port is taken, raises `UsageError` for an address that is not ours."""
    import zmq

    try:
        router.bind(f"tcp://{host}:{port or '*'}")
    except zmq.ZMQError as error:
        if error.errno != errno.EADDRINUSE:
            raise UsageError(f"cannot listen at {host}:{port}: {error.strerror}; give an address of this machine") from error
        return False
    return True


def _numeric(host: str) -> str:
    """Returns the numeric address of a host; blocking while a name is looked up. Refuses an address that stands for all
    interfaces, as it cannot be connected to."""
    try:
        found = str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise UsageError(f"host {host!r} is not known ({error}); give an address of this machine that the workers reach") from error
    if found == "0.0.0.0":
        raise UsageError(f"host {host!r} stands for all addresses; give the address at which workers reach this machine")
    return found


def new_pair() -> Pair:
    """Local: makes a new pair of keys."""
    import zmq

    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()

"""Listening sockets of libraries, closed to strangers once all who belong there are connected.

gloo keeps every connection that it gets, asks nobody who they are, and ends the process when no file is left for one more. Its
listening socket cannot be closed or shut down without an error inside gloo, so the kernel is told to drop what comes to it.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

SO_ATTACH_FILTER = 26
SO_ACCEPTCONN = 30
DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A program for the kernel's packet filter of one instruction: keep 0 bytes of every packet."""


def listening_sockets() -> frozenset[int]:
    """Local: returns the descriptors of this process's listening internet sockets; none where the system does not show them."""
    if sys.platform != "linux":
        return frozenset()
    numbers = [int(name.name) for name in Path("/proc/self/fd").iterdir()]
    return frozenset(number for number in numbers if _is_listening(number))


def refuse_connections(descriptors: Iterable[int]) -> None:
    """Local: from now on nobody can connect to these listening sockets; their connections are not affected."""
    for number in descriptors:
        if _is_listening(number):
            with _socket_of(number) as sock:
                program = ctypes.create_string_buffer(DROP_ALL, len(DROP_ALL))
                sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


def _is_listening(number: int) -> bool:
    """Whether a descriptor is that of a listening internet socket."""
    try:
        with _socket_of(number) as sock:
            is_internet = sock.family in (socket.AF_INET, socket.AF_INET6)
            return is_internet and bool(sock.getsockopt(socket.SOL_SOCKET, SO_ACCEPTCONN))
    except OSError:  # closed meanwhile, or no socket
        return False


@contextmanager
def _socket_of(number: int) -> Iterator[socket.socket]:
    """A context with a socket object for a descriptor that belongs to somebody else; raises `OSError` if it is no socket."""
    copy = os.dup(number)
    try:
        sock = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with sock:
        yield sock

"""What coordinator, supervisors and trials tell each other: small dicts of plain values, one after the other over a socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from time import monotonic
from typing import Any

from unisono.comm.control_plane.channel import MEMBER_LIMIT_BYTES, Channel

Letter = Mapping[str, Any]

FOREVER_S = 1e9


def channel_of(sock: socket.socket) -> Channel:
    """Local: for two ends that trust each other."""
    return Channel(sock, MEMBER_LIMIT_BYTES)


def post(channel: Channel, letter: Letter) -> None:
    """Local, not blocking: what the socket does not take now waits for `flush`."""
    channel.send(json.dumps(letter, allow_nan=True).encode())


def read(message: bytes) -> dict[str, Any]:
    """Pure."""
    found: dict[str, Any] = json.loads(message)
    return found


def wait_for(channel: Channel, within_s: float = FOREVER_S) -> dict[str, Any]:
    """Local, blocking: the next letter; raises `EOFError` where the other end is gone."""
    return read(channel.receive_one(monotonic() + within_s))

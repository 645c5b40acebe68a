"""What coordinator, supervisors and trials tell each other: small dicts of plain values, one after the other over a socket."""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from unisono.comm.control_plane.channel import MEMBER_LIMIT_BYTES, Channel

Letter = Mapping[str, Any]

FOREVER_S = 1e9
DROPPED = "dropped"
"""What is answered, with its name, to a trial that was dropped in the moment in which it began."""


class Dropped(BaseException):
    """Nobody waits for this trial any more. It goes through whatever an objective catches."""


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


class Mailbox:
    """A worker's end of its channel. Its next order may come while it is still at one; it then waits here, and may be dropped."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._orders: deque[dict[str, Any]] = deque()
        self._current: str | None = None

    def post(self, letter: Letter) -> None:
        """Local, not blocking."""
        post(self._channel, letter)

    def order(self, meanwhile: Callable[[], None]) -> dict[str, Any]:
        """Local, blocking: what to do next; before it waits for that it does something else. Raises `EOFError` or `OSError` where
        the other end is gone."""
        while True:
            self._orders.extend(letter for message in self._channel.receive() if "do" in (letter := read(message)))
            dropped = [letter["id"] for letter in self._orders if letter["do"] == "drop"]
            self._orders = deque(one for one in self._orders if one["do"] != "drop" and one["id"] not in dropped)
            if self._orders:
                order = self._orders.popleft()
                self._current = order["id"]
                return order
            meanwhile()
            if "do" in (letter := self._next()):  # else an answer for which a trial that was interrupted did not wait
                self._orders.append(letter)

    def answer(self) -> dict[str, Any]:
        """Local, blocking: what is answered to a letter of ours; raises `EOFError` where the other end is gone, and `Dropped`."""
        while True:
            letter = self._next()
            if "do" in letter:
                self._orders.append(letter)
            elif DROPPED not in letter:
                return letter
            elif letter[DROPPED] == self._current:
                raise Dropped

    def _next(self) -> dict[str, Any]:
        return read(self._channel.receive_one(monotonic() + FOREVER_S))

"""The messages between coordinator, supervisors and workers: small dicts of plain values, one after the other over a socket."""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from unisono.comm.control_plane.channel import AUTHENTICATED_LIMIT_BYTES, Channel

Message = Mapping[str, Any]

FOREVER_S = 1e9
DROPPED = "dropped"
"""The key of the answer to a trial that was dropped at the moment it began; the value is the id of the trial."""


class Dropped(BaseException):
    """Raised in a worker whose trial was dropped. It is no `Exception`, so that an objective does not catch it."""


def channel_of(sock: socket.socket) -> Channel:
    """Returns the channel over a socket whose other end is trusted. Local."""
    return Channel(sock, AUTHENTICATED_LIMIT_BYTES)


def send_message(channel: Channel, message: Message) -> None:
    """Sends a message; what the socket does not take now waits for `flush`. Local, not blocking."""
    channel.send(json.dumps(message, allow_nan=True).encode())


def parse_message(data: bytes) -> dict[str, Any]:
    """Returns the message that these bytes encode. Pure."""
    found: dict[str, Any] = json.loads(data)
    return found


class MessageQueue:
    """A worker's end of its channel. The next command may arrive while the worker is still busy; it waits here, and may be
    dropped."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._commands: deque[dict[str, Any]] = deque()
        self._current: str | None = None

    def send(self, message: Message) -> None:
        """Sends a message to the coordinator. Local, not blocking."""
        send_message(self._channel, message)

    def next_command(self, before_waiting: Callable[[], None]) -> dict[str, Any]:
        """Waits for the next command and returns it; calls `before_waiting` before it waits. Raises `EOFError` or `OSError` where
        the other end is gone. Local, blocking."""
        while True:
            self._commands.extend(message for data in self._channel.receive() if "do" in (message := parse_message(data)))
            dropped = [message["id"] for message in self._commands if message["do"] == "drop"]
            self._commands = deque(one for one in self._commands if one["do"] != "drop" and one["id"] not in dropped)
            if self._commands:
                command = self._commands.popleft()
                self._current = command["id"]
                return command
            before_waiting()
            if "do" in (message := self._receive()):  # else an answer for which a trial that was interrupted did not wait
                self._commands.append(message)

    def wait_for_answer(self) -> dict[str, Any]:
        """Waits for the answer to our last message and returns it. Raises `EOFError` or `OSError` where the other end is gone, and
        `Dropped`. Local, blocking."""
        while True:
            message = self._receive()
            if "do" in message:
                self._commands.append(message)
            elif DROPPED not in message:
                return message
            elif message[DROPPED] == self._current:
                raise Dropped

    def _receive(self) -> dict[str, Any]:
        """Returns the next message; blocks until it comes."""
        return parse_message(self._channel.receive_one(monotonic() + FOREVER_S))

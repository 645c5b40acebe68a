"""What coordinator, supervisors and trials tell each other: small dicts of plain values, one after the other over a socket."""

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
"""What is answered, with its name, to a trial that was dropped in the moment in which it began."""


class Dropped(BaseException):
    """This trial was dropped, and nobody waits for it. It goes through whatever an objective catches."""


def channel_of(sock: socket.socket) -> Channel:
    """Local: for two ends that trust each other."""
    return Channel(sock, AUTHENTICATED_LIMIT_BYTES)


def send_message(channel: Channel, message: Message) -> None:
    """Local, not blocking: what the socket does not take now waits for `flush`."""
    channel.send(json.dumps(message, allow_nan=True).encode())


def parse_message(data: bytes) -> dict[str, Any]:
    """Pure."""
    found: dict[str, Any] = json.loads(data)
    return found


class MessageQueue:
    """A worker's end of its channel. Its next order may come while it is still at one; it then waits here, and may be dropped."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._commands: deque[dict[str, Any]] = deque()
        self._current: str | None = None

    def send(self, message: Message) -> None:
        """Local, not blocking."""
        send_message(self._channel, message)

    def next_command(self, before_waiting: Callable[[], None]) -> dict[str, Any]:
        """Local, blocking: what to do next; before it waits for that it does something else. Raises `EOFError` or `OSError` where
        the other end is gone."""
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
        """Local, blocking: wait for the answer to our message; raises `EOFError` where the other end is gone, and `Dropped`."""
        while True:
            message = self._receive()
            if "do" in message:
                self._commands.append(message)
            elif DROPPED not in message:
                return message
            elif message[DROPPED] == self._current:
                raise Dropped

    def _receive(self) -> dict[str, Any]:
        return parse_message(self._channel.receive_one(monotonic() + FOREVER_S))

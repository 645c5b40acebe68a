"""One connection of the hub, and the reasons for which a connection to a rank ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unisono.comm.control_plane.channel import SILENCE_S, Channel
from unisono.comm.control_plane.handshake import Challenge

DIED = "died: its connection closed unexpectedly (killed, crashed or exited without close)"
VANISHED = f"vanished: its host has not answered for {SILENCE_S} s"


def reason_of(error: OSError) -> str:
    """Returns the reason for the loss of a rank whose connection broke."""
    if isinstance(error, TimeoutError):  # the kernel's keepalive
        return VANISHED
    if isinstance(error, ConnectionError):
        return DIED
    return f"cannot be reached any more: {error.strerror or error}"


@dataclass(eq=False)
class Connection:
    """One connection; unauthenticated until it has a rank."""

    channel: Channel
    challenge: Challenge | None
    """None for rank 0 itself, whose connection does not leave the process."""
    here: str = ""
    there: str = ""
    """The addresses of both ends."""
    rank: int | None = None
    refused: bool = False
    who: str = ""
    info: Any = None
    writing: bool = False
    gone: bool = False

"""A rank's wait for the hub's message that all ranks are connected."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

from unisono.comm.control_plane.channel import Channel
from unisono.comm.control_plane.hub_connection import DIED, reason_of
from unisono.comm.control_plane.plain import decode
from unisono.errors import CollectiveTimeout, CommError, PeerLost, UsageError

ATTEND_S = 0.25
"""Interval at which `attend` is called while the other ranks are awaited."""


def await_welcome(
    rank: int, link: Channel, deadline: float, timeout_s: float, attend: Callable[[], None] | None
) -> tuple[list[dict[Any, Any]], str]:
    """Blocking until the hub reports that all ranks are connected; returns their infos and the hub's address."""
    where = f"rank {rank} could not connect to the others"
    try:
        while (answer := decode(_receive_one(link, deadline, attend))) == ("joined",):  # rank 0 is taken in like everybody
            continue
    except TimeoutError:
        raise CollectiveTimeout([0], f"{where}: rank 0 accepted it but did not answer within {timeout_s:g} s") from None
    except EOFError:
        raise PeerLost([0], f"{where}: rank 0 {DIED}") from None
    except OSError as error:
        raise PeerLost([0], f"{where}: rank 0 {reason_of(error)}") from error
    match answer:
        case ("welcome", list(infos), str(reached_at)):
            return infos, reached_at
        case ("refused", str(text)):
            raise UsageError(text)
        case ("missing", list(missing), str(text)):
            raise CollectiveTimeout(missing, f"{where} within {timeout_s:g} s: {text}")
        case ("lost", int(gone), str(reason), _, _):
            raise PeerLost([gone], f"{where}: rank {gone} {reason}")
    raise CommError(f"{where}: rank 0 sent an invalid answer; check that all ranks run the same version of unisono")


def _receive_one(link: Channel, deadline: float, attend: Callable[[], None] | None) -> bytes:
    """Blocking: returns the next message. `attend` is called several times a second meanwhile; what it raises ends the wait."""
    while attend is not None:
        attend()
        with suppress(TimeoutError):
            if monotonic() < deadline:
                return link.receive_one(min(deadline, monotonic() + ATTEND_S))
            break
    return link.receive_one(deadline)

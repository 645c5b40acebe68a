"""The search of a rank for rank 0."""

from __future__ import annotations

import socket
from time import monotonic
from typing import Any

import psutil
import pytest

from unisono.comm.control_plane import meeting
from unisono.comm.control_plane.job_pass import Pass


def test_attend_is_called_before_every_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round over all ports may take a minute where packets are dropped."""
    events: list[str] = []

    class CalledOff(Exception):
        pass

    def knock(*args: Any) -> None:
        events.append(f"port {args[1][1]}")

    def attend() -> None:
        events.append("asked")
        if len(events) == 7:
            raise CalledOff

    monkeypatch.setattr(meeting, "_try_port", knock)
    with pytest.raises(CalledOff):
        meeting.connect_to_hub(1, "127.0.0.1", [5, 6, 7], Pass("token"), {}, monotonic() + 20, 20.0, attend=attend)
    assert events == ["asked", "port 5", "asked", "port 5", "asked", "port 6", "asked"]


def test_a_stranger_of_this_machine_cannot_pass_for_another_host() -> None:
    """Whatever address of this machine he connects from."""
    assert meeting.on_one_machine("10.0.0.1", "10.0.0.1")
    assert meeting.on_one_machine("10.0.0.1", "127.0.0.2")
    assert meeting.on_one_machine("10.0.0.1", "::1")
    own = {
        one.address for found in psutil.net_if_addrs().values() for one in found if one.family in (socket.AF_INET, socket.AF_INET6)
    }
    assert all(meeting.on_one_machine("192.0.2.1", address) for address in own), own
    assert not meeting.on_one_machine("10.0.0.1", "192.0.2.7")
    assert not meeting.on_one_machine("::1", "2001:db8::7")

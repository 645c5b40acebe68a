"""The search of a rank for rank 0."""

from __future__ import annotations

from time import monotonic
from typing import Any

import pytest

from unisono.comm.control_plane import meeting
from unisono.comm.control_plane.handshake import Pass


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

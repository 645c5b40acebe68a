"""Ports for tests that must name one before anybody listens."""

from __future__ import annotations

import random
import socket


def free_ports(count: int) -> list[int]:
    """Below the range from which the kernel serves clients, so that none of them takes one before its owner does."""
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(20000, 30000)
        with socket.socket() as probe:
            if port not in found and probe.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
    return found


def free_port() -> int:
    return free_ports(1)[0]

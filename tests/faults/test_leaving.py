"""Who leaves in good order takes nothing along that others still wait for: what it sent arrives, however late they look."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.fork_server import ForkServer

LEAVE = str(Path(__file__).parent / "programs" / "leave.py")
SIZE = 4


@pytest.mark.parametrize(("engine", "what"), [("shm", "messages"), ("gloo", "messages"), ("gloo", "collective")])
def test_a_rank_is_late_after_another_has_left(fork_server: ForkServer, engine: str, what: str) -> None:
    ended = fork_server.run([LEAVE, what], SIZE, engine, 100.0)
    assert ended.exit_code == 0, str(ended)
    for rank in range(SIZE):
        assert f"rank {rank} is done" in ended.output, str(ended)
        if what == "messages" and rank:
            assert f"rank {rank} waits for no more: " in ended.output, str(ended)

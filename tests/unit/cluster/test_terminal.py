"""Who speaks to a terminal: a process that has one, or a rank whose launcher said so."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios

from unisono.cluster.terminal import Terminal, columns_of, terminal_of
from unisono.launch.rank_env import Placement, rank_environment

PARENT = 4711


def test_a_terminal_of_its_own() -> None:
    assert terminal_of({}, 97, PARENT) == Terminal(97, colour=True)
    assert terminal_of({"NO_COLOR": "1"}, 97, PARENT) == Terminal(97, colour=False)
    assert terminal_of({"TERM": "dumb"}, 97, PARENT) == Terminal(None)
    assert terminal_of({}, None, PARENT) == Terminal(None)


def test_a_terminal_behind_the_launcher() -> None:
    assert terminal_of({"UNISONO_TERMINAL": "97:4711"}, None, PARENT) == Terminal(97, colour=True)
    assert terminal_of({"UNISONO_TERMINAL": "97:4711", "TERM": "dumb"}, None, PARENT) == Terminal(None)


def test_children_of_a_rank_and_nonsense_have_none() -> None:
    for text in ("97:4712", "97", ":4711", "wide:4711", ""):
        assert terminal_of({"UNISONO_TERMINAL": text}, None, PARENT) == Terminal(None)


def test_only_a_terminal_with_a_width_counts() -> None:
    master, slave = pty.openpty()
    reader, writer = os.pipe()
    try:
        assert columns_of(slave) is None, "as Open MPI makes them: no width"
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 97, 0, 0))
        assert columns_of(slave) == 97
        assert columns_of(writer) is None
    finally:
        for fd in (master, slave, reader, writer):
            os.close(fd)
    assert columns_of(slave) is None, "closed"


def test_only_rank_0_gets_the_terminal() -> None:
    def terminal_of(node_rank: int, local_rank: int, terminal: str) -> str | None:
        at = Placement(2, 2, node_rank, "a:1", "n", "t", "j", 0, 1, False, (), (), terminal=terminal)
        return rank_environment({"UNISONO_TERMINAL": "of an outer job"}, at, local_rank).get("UNISONO_TERMINAL")

    assert terminal_of(0, 0, "97:1") == "97:1"
    assert [terminal_of(0, 1, "97:1"), terminal_of(1, 0, "97:1"), terminal_of(0, 0, "")] == [None, None, None]

"""Ends what the ranks leave when their launcher was killed and could not do it itself: a program of its own.

Lines of standard input tell it what to end: a number is one more process group, NAME=value is a variable that all ranks have,
and thereby what they start, an empty line means that all have ended. The end of input is the end of the launcher.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from time import monotonic, sleep

from unisono.cluster.descent import PROC, Process, below, processes, variables

GRACE_S = 1.0
"""The kernel has killed the ranks already; this is for what they left to clean up (as multiprocessing's tracker does)."""
LOOK_S = 0.02

Send = Callable[[int, int], None]
"""To a process or to a group."""


def main(launcher: int) -> None:
    """Blocking: until the launcher, whose process number is given, has ended."""
    groups: list[int] = []
    marks: set[bytes] = set()
    for line in sys.stdin:
        if line == "\n":
            groups, marks = [], set()
        elif line.endswith("\n"):
            if "=" in line:
                marks.add(line.rstrip("\n").encode())
            else:
                groups.append(int(line))
    if groups:
        end(launcher, groups, marks)


def end(launcher: int, groups: list[int], marks: set[bytes]) -> None:
    """Blocking for a bounded time: first ask, then kill, until nobody is left."""
    asked: set[tuple[Send, int]] = set()
    kill_from = monotonic() + GRACE_S
    while (now := monotonic()) < kill_from + GRACE_S:
        # The launcher's files, and so our input, were closed a moment before its children got another parent.
        adopted = os.getppid() != launcher
        orphans = left_to(os.getppid(), marks) if adopted else []
        targets: list[tuple[Send, int]] = [*((os.killpg, group) for group in groups), *((os.kill, one.pid) for one in orphans)]
        reached = {
            (how, number)
            for how, number in targets
            if send(how, number, signal.SIGKILL if now >= kill_from else 0 if (how, number) in asked else signal.SIGTERM)
        }
        if adopted and not reached:
            return
        groups = [number for how, number in reached if how is os.killpg]
        asked |= reached
        sleep(LOOK_S)  # nothing tells of the end of a process that is not our child


def left_to(reaper: int, marks: set[bytes]) -> list[Process]:
    """Who carries all marks and is now a child of the one who adopted us, and was adopted with us; with all descendants."""
    table = processes()
    adopted = (process for process in table.values() if process.parent == reaper and not process.ended)
    roots = [process for process in adopted if marks and marks.issubset(variables(PROC / str(process.pid)))]
    return [process for process in below(table, roots) if not process.ended]


def send(how: Send, number: int, signum: int) -> bool:
    """Whether there was anybody to send it to."""
    try:
        how(number, signum)
    except (ProcessLookupError, PermissionError):  # gone, or (on macOS) nothing but zombies
        return False
    return True

"""The watchdog, a separate program: ends the processes of the ranks when their launcher was killed and could not do it.

Lines of standard input say what to end: a number is one more process group, NAME=value is a variable of all ranks and of
the processes that they start, an empty line means that all have ended. The end of input is the end of the launcher.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from time import monotonic, sleep

from unisono.cluster.machine.process_tree import PROC, Process, processes, variables_of, with_descendants

GRACE_S = 1.0
"""Time between SIGTERM and SIGKILL. The kernel has killed the ranks already; their children may need it to clean up (as
multiprocessing's tracker does)."""
POLL_S = 0.02

Send = Callable[[int, int], None]
"""Function that sends a signal to a process or to a group."""


def main(launcher: int) -> None:
    """Blocking until the launcher, whose process id is given, has ended; then ends what is left of its ranks."""
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
        end_groups(launcher, groups, marks)


def end_groups(launcher: int, groups: list[int], marks: set[bytes]) -> None:
    """Blocking for a bounded time: sends SIGTERM, then SIGKILL, until no process is left."""
    signalled: set[tuple[Send, int]] = set()
    kill_from = monotonic() + GRACE_S
    while (now := monotonic()) < kill_from + GRACE_S:
        # The launcher's files, and so our input, were closed a moment before its children got another parent.
        adopted = os.getppid() != launcher
        orphans = adopted_orphans(os.getppid(), marks) if adopted else []
        targets: list[tuple[Send, int]] = [*((os.killpg, group) for group in groups), *((os.kill, one.pid) for one in orphans)]
        reached = {
            (how, number)
            for how, number in targets
            if send(how, number, signal.SIGKILL if now >= kill_from else 0 if (how, number) in signalled else signal.SIGTERM)
        }
        if adopted and not reached:
            return
        groups = [number for how, number in reached if how is os.killpg]
        signalled |= reached
        sleep(POLL_S)  # nothing tells of the end of a process that is not our child


def adopted_orphans(reaper: int, marks: set[bytes]) -> list[Process]:
    """Local: returns the running children of `reaper`, which has adopted us, that have all variables of `marks`, and their
    descendants."""
    table = processes()
    adopted = (process for process in table.values() if process.parent == reaper and not process.ended)
    roots = [process for process in adopted if marks and marks.issubset(variables_of(PROC / str(process.pid)))]
    return [process for process in with_descendants(table, roots) if not process.ended]


def send(how: Send, number: int, signum: int) -> bool:
    """Local: sends the signal; returns whether there was a process to receive it."""
    try:
        how(number, signum)
    except (ProcessLookupError, PermissionError):  # gone, or (on macOS) nothing but zombies
        return False
    return True

"""Ends the process groups of the ranks when their launcher was killed and could not do it itself.

A program of its own, started by the launcher with nothing but Python: each line of standard input names one more process
group, an empty line means that all of them have ended. The end of input is the end of the launcher.
"""

from __future__ import annotations

import os
import signal
import sys
import time

GRACE_S = 1.0
"""The kernel has killed the ranks already; this is for their children to clean up (as multiprocessing's tracker does)."""


def main() -> None:
    groups: list[int] = []
    for line in sys.stdin:
        if line == "\n":
            groups = []
        elif line.endswith("\n"):
            groups.append(int(line))
    if send(groups, signal.SIGTERM):
        time.sleep(GRACE_S)
        send(groups, signal.SIGKILL)


def send(groups: list[int], signum: int) -> bool:
    """Whether there was anybody to send it to."""
    found = False
    for group in groups:
        try:
            os.killpg(group, signum)
            found = True
        except (ProcessLookupError, PermissionError):  # gone, or (on macOS) nothing but zombies
            continue
    return found


if __name__ == "__main__":
    main()

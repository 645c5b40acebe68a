"""Finds the process of the launcher, which identifies a job whose launcher gives it no name. Local; reads /proc."""

from __future__ import annotations

from pathlib import Path

from unisono.cluster.machine.process_tree import PARENT, PROC, START_TIME, stat, variables_of


def launcher_process(mark: str, pid: int, proc: Path = PROC) -> str | None:
    """Returns the nearest ancestor of `pid` whose environment lacks the variable `mark`, as pid and start time; None if unknown.

    Scripts between the launcher and us carry the variables that the launcher gave to us; the launcher itself does not. All
    processes of a launcher on one node find the same ancestor, and no other process ever has both its pid and start time.
    """
    try:
        while (parent := int(stat(proc / str(pid))[PARENT])) > 0:
            # A daemon of the system, which is what starts ranks on some sites, does not show its variables; nor has it ours.
            if not any(variable.startswith(f"{mark}=".encode()) for variable in variables_of(proc / str(parent))):
                return f"{parent}-{stat(proc / str(parent))[START_TIME]}"
            pid = parent
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        # No /proc here, or one that hides other users' processes, or an ancestor ended meanwhile.
        return None
    return None

"""Which process started us: the name of a job whose launcher gives none. Local; reads /proc."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")

PARENT, START_TIME = 1, 19
"""Positions in /proc/pid/stat behind the name, which is in parentheses and may hold blanks."""


def launcher_process(mark: str, pid: int, proc: Path = PROC) -> str | None:
    """The nearest ancestor of `pid` whose environment lacks the variable `mark`, as pid and start time; None if unknown.

    Scripts between the launcher and us carry the variables that the launcher gave to us; the launcher itself does not. All
    processes of a launcher on one node find the same ancestor, and no other process ever has both its pid and start time.
    """
    try:
        while (parent := int(_stat(proc / str(pid))[PARENT])) > 0:
            if not _carries(proc / str(parent), mark):
                return f"{parent}-{_stat(proc / str(parent))[START_TIME]}"
            pid = parent
    except (FileNotFoundError, ProcessLookupError):
        # No /proc here, or one that hides other users' processes, or an ancestor ended while we looked.
        return None
    return None


def _stat(folder: Path) -> list[str]:
    return (folder / "stat").read_text().rpartition(")")[2].split()


def _carries(folder: Path, mark: str) -> bool:
    try:
        variables = (folder / "environ").read_bytes().split(b"\0")
    except PermissionError:  # a daemon of the system, which is what starts ranks on some sites
        return False
    return any(variable.startswith(f"{mark}=".encode()) for variable in variables)

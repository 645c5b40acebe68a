"""The tree of processes, as /proc shows it; it finds processes that left their rank's group. Local."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")

STATE, PARENT, SESSION, START_TIME = 0, 1, 3, 19
"""Positions in /proc/pid/stat behind the name, which is in parentheses and may hold blanks."""


@dataclass(frozen=True)
class Process:
    """One entry of the process table. Entries of one process are equal, also when its parent has changed between two reads."""

    pid: int
    start: int
    """Time of its start, in the kernel's ticks: process numbers are used again."""
    parent: int = field(compare=False)
    session: int = field(compare=False)
    ended: bool = field(compare=False)
    """Whether it has ended and only its exit code is left, for its parent to collect."""


def processes(proc: Path = PROC) -> dict[int, Process]:
    """Returns all processes that we may see, by number; none where the system has no /proc (macOS)."""
    found: dict[int, Process] = {}
    for folder in proc.iterdir() if proc.is_dir() else ():
        if folder.name.isdigit():
            try:
                fields = stat(folder)
            except (FileNotFoundError, ProcessLookupError, PermissionError):  # it ended meanwhile, or is hidden from us
                continue
            pid = int(folder.name)
            ended = fields[STATE] in "ZX"
            found[pid] = Process(pid, int(fields[START_TIME]), int(fields[PARENT]), int(fields[SESSION]), ended)
    return found


def with_descendants(table: Mapping[int, Process], roots: Iterable[Process]) -> list[Process]:
    """Pure: returns the roots and all their descendants."""
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    found = list(roots)
    for process in found:  # grows while we go
        found.extend(children.get(process.pid, ()))
    return found


def stat(folder: Path) -> list[str]:
    """Returns the fields of /proc/pid/stat behind the name; raises `FileNotFoundError` or `ProcessLookupError` where the process
    is gone."""
    return (folder / "stat").read_text().rpartition(")")[2].split()


def variables_of(folder: Path) -> list[bytes]:
    """Returns the environment that a process was started with, one NAME=value each; empty where it is gone or may not be read."""
    try:
        return (folder / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []

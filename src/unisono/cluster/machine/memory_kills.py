"""The number of processes of this job that the system has killed for lack of memory, where it counts them (control groups of
Linux)."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def num_memory_kills(root: Path = ROOT, membership: Path = Path("/proc/self/cgroup")) -> int:
    """Local: returns the count of this process's control group; 0 where the system does not count."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        inside = path.lstrip("/")
        files = {"": ("memory.events", root), "memory": ("memory.oom_control", root / "memory")}
        if controllers in files:
            name, base = files[controllers]
            for folder in (base / inside, base):  # in a container the path may be that of the host
                if (found := _count_in(folder / name)) is not None:
                    return found
    return 0


def _count_in(file: Path) -> int | None:
    """Returns the number of processes killed for memory (`oom_kill`) in a file of the control group; None where it is not there."""
    try:
        words = dict(line.split()[:2] for line in file.read_text().splitlines())
        return int(words["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None

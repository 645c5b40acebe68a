"""Limits that a container or a scheduler set through control groups, of either version. Local; reads files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def cpu_quota(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """Returns the limit on the total CPU time, in CPUs; None where there is no limit."""
    quotas = [quota for folder in _folders("cpu", root, membership) if (quota := _quota_of_group(folder)) is not None]
    return min(quotas, default=None)


def memory_left(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Returns the bytes left until the memory limit, cached files not counted as used; None where there is no limit."""
    return min(
        (left for folder in _folders("memory", root, membership) if (left := _memory_left_in(folder)) is not None), default=None
    )


def _quota_of_group(folder: Path) -> float | None:
    """Returns the limit on the CPU time of one control group, in CPUs; None where it has none."""
    words = (_read_text(folder / "cpu.max") or "").split()
    if len(words) != 2:
        words = [_read_text(folder / name) or "" for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    if not all(word.isdigit() for word in words) or not int(words[1]):
        return None
    return int(words[0]) / int(words[1])


def _memory_left_in(folder: Path) -> int | None:
    """Returns the bytes left until the memory limit of one control group; None where it has none."""
    limit = _read_text(folder / "memory.max") or _read_text(folder / "memory.limit_in_bytes") or ""
    used = _read_text(folder / "memory.current") or _read_text(folder / "memory.usage_in_bytes") or ""
    if not limit.isdigit() or not used.isdigit():
        return None
    lines = (_read_text(folder / "memory.stat") or "").splitlines()
    stat = {name: int(value) for name, _, value in (line.partition(" ") for line in lines) if value.isdigit()}
    droppable = stat.get("total_inactive_file", stat.get("inactive_file", 0))
    return max(0, int(limit) - int(used) + droppable)


def _folders(controller: str, root: Path, membership: Path) -> Iterator[Path]:
    """Yields the folders from the group of this process upwards; the narrowest limit among them counts."""
    for line in (_read_text(membership) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controllers if controllers else root
        # A container shows the path as the host knows it; what is not there is the container's own root.
        place = base / path.lstrip("/")
        while place != base and base in place.parents:
            if place.is_dir():
                yield place
            place = place.parent
        yield base
        if controllers and not base.is_dir():
            yield root / controller


def _read_text(file: Path) -> str | None:
    """Returns the text of a file without white space at its ends; None where it cannot be read."""
    try:
        return file.read_text().strip()
    except OSError:  # not this version, or not ours to read
        return None

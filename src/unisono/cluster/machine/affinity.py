"""CPUs that this process may use, and the number of threads for each of several workers. Local."""

from __future__ import annotations

import os
from collections.abc import Collection


def available_cpus() -> frozenset[int]:
    """Returns the affinity mask; all CPUs where the system has none (macOS)."""
    affinity = getattr(os, "sched_getaffinity", None)
    return frozenset(affinity(0) if affinity else range(os.cpu_count() or 1))


def cpu_share(local_rank: int, local_size: int, mask: Collection[int] | None = None) -> frozenset[int] | None:
    """Returns the CPUs of one of several workers that divide the mask evenly; None where there are fewer CPUs than workers.

    Two workers that the system puts on one CPU, though another is idle, wait for each other a hundred times longer.
    """
    available = sorted(available_cpus() if mask is None else mask)
    each = len(available) // local_size
    return frozenset(available[local_rank * each : (local_rank + 1) * each]) if each else None


def threads_per_worker(local_size: int, mask: Collection[int] | None = None) -> int:
    """Returns the number of threads of a worker: an equal part, at least one, of the CPUs that `local_size` workers share. Where
    a scheduler gave each worker CPUs of its own, the part is the whole mask: say `local_size=1`."""
    return max(1, len(available_cpus() if mask is None else mask) // local_size)

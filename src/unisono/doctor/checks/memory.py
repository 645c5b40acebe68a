"""Checks the memory for each rank, and the size of /dev/shm."""

from __future__ import annotations

from collections.abc import Iterator

from unisono.doctor.facts import Job, with_unit
from unisono.doctor.finding import OK, WARN, Finding

GIB = 1 << 30
LEAST_FOR_RANK = GIB
LEAST_SHM = GIB // 2
"""Docker gives 64 MB; a few batches of a data loader already need more."""


def check(job: Job) -> Iterator[Finding]:
    """Yields for each node a finding on the available memory and one on /dev/shm."""
    for node, ranks in job.nodes.items():
        available = min((facts.memory_bytes for facts in ranks if facts.memory_bytes is not None), default=None)
        if available is not None:
            fact = f"{_size(available)} available to {with_unit(len(ranks), 'rank')}"
            if available < LEAST_FOR_RANK * len(ranks):
                remedy = (
                    f"request at least {_size(LEAST_FOR_RANK)} for each rank (SLURM: --mem or --mem-per-cpu), or start fewer ranks"
                )
                yield Finding(WARN, "memory", fact, remedy, node)
            else:
                yield Finding(OK, "memory", fact, node=node)
        yield from _check_shared_memory(node, ranks[0].shm_bytes, ranks[0].shm_free_bytes)


def _check_shared_memory(node: str, total: int | None, free: int | None) -> Iterator[Finding]:
    """Yields whether /dev/shm is large enough, and free enough, for data loaders."""
    if total is None or free is None:
        yield Finding(OK, "/dev/shm", "this system has no /dev/shm", node=node)
    elif total < LEAST_SHM:
        fact = (
            f"only {_size(total)}: worker processes of PyTorch's data loaders pass batches through it and may die with a bus error"
        )
        remedy = "docker run --shm-size=8g (or --ipc=host); Kubernetes: an emptyDir of medium Memory; or set num_workers=0"
        yield Finding(WARN, "/dev/shm", fact, remedy, node)
    elif free < LEAST_SHM:
        fact = f"only {_size(free)} of {_size(total)} are free"
        yield Finding(
            WARN, "/dev/shm", fact, "list the files that earlier jobs left there (ls -la /dev/shm) and remove yours", node
        )
    else:
        yield Finding(
            OK,
            "/dev/shm",
            f"{_size(free)} of {_size(total)} free; engine shm does not use it, data loaders do",
            node=node,
        )


def _size(num_bytes: int) -> str:
    """Returns bytes as text: '1.5 GiB' or '64 MiB'."""
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / (1 << 20):.0f} MiB"

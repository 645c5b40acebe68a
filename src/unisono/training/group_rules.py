"""Which processes may form one worker (`--group`)."""

from __future__ import annotations

from unisono.algorithms.base import Algorithm
from unisono.errors import UsageError


def check_group(group: int | None, name: str, algorithm: type[Algorithm], num_processes: int) -> None:
    """Pure: refuse groups that an algorithm has no use for, or that so many processes cannot form."""
    if group is None:
        return
    if not algorithm.takes_group:
        raise UsageError(
            f"--group {group} is read by nobody: with --algorithm {name} all processes agree in every step; leave it out, or "
            "choose an algorithm whose workers learn by themselves, e.g. local_sgd or diloco"
        )
    if num_processes % group:
        fitting = num_processes - num_processes % group or group
        processes = f"{num_processes} process{'es' if num_processes > 1 else ''}"
        raise UsageError(
            f"{processes} cannot form workers of {group} (--group); use {fitting}, or a --group that divides {num_processes}"
        )

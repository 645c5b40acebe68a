"""Sums and means over all workers of what a user's code logged."""

from __future__ import annotations

from collections.abc import Iterable

from unisono.comm.base import Communicator
from unisono.model.base import Logged


def mean_logged_values(comm: Communicator, mine: Logged | None) -> dict[str, float]:
    """Collective, blocking: mean of each logged value over all workers, by name. Returns at once if the model cannot log."""
    if mine is None:
        return {}
    sums = add_logged(comm.allgather_object(dict(mine)))
    return {name: value / weight for name, (value, weight) in sums.items() if weight}


def add_logged(logged: Iterable[Logged]) -> dict[str, tuple[float, float]]:
    """Pure: adds the logged values of all workers: name -> sum and weight."""
    sums: dict[str, tuple[float, float]] = {}
    for found in logged:
        for name, (value, weight) in found.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + value, before[1] + weight)
    return sums

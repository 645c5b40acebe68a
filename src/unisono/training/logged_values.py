"""What a user's code logged on every worker, as sums and means over all of them."""

from __future__ import annotations

from collections.abc import Iterable

from unisono.comm.base import Communicator
from unisono.model.base import Logged


def means(comm: Communicator, mine: Logged | None) -> dict[str, float]:
    """Collective, blocking, unless there is nothing that could log: name -> mean with the weights of all workers."""
    if mine is None:
        return {}
    sums = added(comm.allgather_object(dict(mine)))
    return {name: value / weight for name, (value, weight) in sums.items() if weight}


def added(logged: Iterable[Logged]) -> dict[str, tuple[float, float]]:
    """Pure: name -> sum and weight of all."""
    sums: dict[str, tuple[float, float]] = {}
    for found in logged:
        for name, (value, weight) in found.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + value, before[1] + weight)
    return sums

"""Which worker gets which rank in a generation. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unisono.horovod._impl.elastic.worker_environment import RankAssignment


@dataclass(frozen=True)
class Candidate:
    """One worker that is ready to take part."""

    worker: int
    """Its number, in the order of starts."""
    host: str
    slot: int
    has_state: bool = False
    """Whether it holds the state of the job, which `sync` takes from rank 0."""
    since: int = 1 << 60
    """The first generation that it took part in."""


def by_age(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Returns the candidates in the order of ranks: first those that hold the state, then the oldest."""
    return sorted(candidates, key=lambda one: (not one.has_state, one.since, one.worker))


def assign_ranks(candidates: Sequence[Candidate], generation: int, address: str, token: str) -> dict[int, RankAssignment]:
    """Returns the ranks of each worker. The oldest worker has rank 0; the ranks of a host follow each other; local ranks follow the
    slots. Pure."""
    oldest_first = by_age(candidates)
    hosts = list(dict.fromkeys(one.host for one in oldest_first))
    ordered = [one for host in hosts for one in oldest_first if one.host == host]
    slots = {host: sorted(one.slot for one in candidates if one.host == host) for host in hosts}
    assignments: dict[int, RankAssignment] = {}
    for rank, one in enumerate(ordered):
        local_rank = slots[one.host].index(one.slot)
        across = [host for host in hosts if len(slots[host]) > local_rank]
        assignments[one.worker] = RankAssignment(
            generation=generation,
            rank=rank,
            size=len(ordered),
            local_rank=local_rank,
            local_size=len(slots[one.host]),
            cross_rank=across.index(one.host),
            cross_size=len(across),
            node_rank=hosts.index(one.host),
            num_nodes=len(hosts),
            address=address,
            token=token,
        )
    return assignments

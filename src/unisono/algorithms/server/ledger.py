"""Which worker computes which batch: every batch of every epoch is assigned, done once, and assigned again if its worker is lost.

A unit is one worker's batch, counted from 0 over all epochs. A lease is the units of one worker between two calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Lease(NamedTuple):
    """The units assigned to one worker until its next call."""

    number: int
    worker: int
    units: tuple[int, ...]


@dataclass
class Ledger:
    """Assigns units to workers and knows which are done. Local to the server; plain values in and out, so that it can be saved."""

    units_per_epoch: int
    num_epochs: int
    epoch_by_epoch: bool = False
    """Deal nothing of the next epoch before all of this one is done, so that rounds of all workers never mix two."""
    next_unit: int = 0
    num_done: int = 0
    num_leases: int = 0
    num_dealt_again: int = 0
    """Units whose worker was lost."""
    returned: deque[int] = field(default_factory=deque)
    leases: dict[int, Lease] = field(default_factory=dict)
    """The lease of each worker; at most one."""

    @property
    def num_units(self) -> int:
        """Number of units of work, each a batch, in all epochs."""
        return self.units_per_epoch * self.num_epochs

    @property
    def is_over(self) -> bool:
        """Whether every unit is done, and nothing that workers kept back of them is still to come."""
        return self.num_done == self.num_units and not self.leases

    @property
    def takes_remains(self) -> bool:
        """Whether workers that have none of the last units may send what they kept back: in rounds all of them do it together."""
        all_dealt = self.next_unit >= self.num_units and not self.returned
        return all_dealt and (not self.epoch_by_epoch or self.num_done == self.num_units)

    def deal(self, worker: int, wanted: int) -> Lease | None:
        """Assigns up to `wanted` units to a worker that has none; None if none are left at the moment."""
        assert worker not in self.leases, f"worker {worker} has units in hand"
        end = self.num_units
        if self.epoch_by_epoch:
            end = min(end, (self.num_done // self.units_per_epoch + 1) * self.units_per_epoch)
        units: list[int] = []
        while len(units) < wanted and (self.returned or self.next_unit < end):
            if self.returned:
                units.append(self.returned.popleft())
            else:
                units.append(self.next_unit)
                self.next_unit += 1
        return self._lease(worker, units) if units else None

    def deal_nothing(self, worker: int) -> Lease:
        """Assigns no units to a worker, so that it calls once more."""
        return self._lease(worker, ())

    def done(self, worker: int) -> Lease:
        """Counts the lease of a worker as done and returns it."""
        lease = self.leases.pop(worker)
        self.num_done += len(lease.units)
        return lease

    def lose(self, worker: int) -> int:
        """Takes back the lease of a worker that is gone: its units are assigned again before any others. Returns how many."""
        lease = self.leases.pop(worker, None)
        if lease is None:
            return 0
        self.returned.extend(lease.units)
        self.num_dealt_again += len(lease.units)
        return len(lease.units)

    def _lease(self, worker: int, units: Sequence[int]) -> Lease:
        """Notes and returns the next lease, of these units."""
        lease = self.leases[worker] = Lease(self.num_leases, worker, tuple(units))
        self.num_leases += 1
        return lease

    def skip_to(self, unit: int) -> None:
        """Local, before anything is assigned: counts all units before this one as done."""
        self.num_done = self.next_unit = unit

    def state(self) -> dict[str, Any]:
        """Pure: the state in plain values, for `restore`."""
        return {
            "next_unit": self.next_unit,
            "num_done": self.num_done,
            "num_leases": self.num_leases,
            "num_dealt_again": self.num_dealt_again,
            "returned": list(self.returned),
            "leases": [[lease.number, lease.worker, list(lease.units)] for lease in self.leases.values()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Local: resumes with what `state` gave."""
        for name in ("next_unit", "num_done", "num_leases", "num_dealt_again"):
            setattr(self, name, int(state[name]))
        self.returned = deque(int(unit) for unit in state["returned"])
        self.leases = {worker: Lease(number, worker, tuple(units)) for number, worker, units in state["leases"]}

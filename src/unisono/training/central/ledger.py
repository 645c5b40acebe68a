"""Who computes which batch: every batch of every epoch is dealt out, done once, and dealt out again if its worker is lost.

A unit is one worker's batch, counted from 0 over all epochs. A lease is what one worker has in hand between two calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Lease(NamedTuple):
    """Units that one worker has in hand."""

    number: int
    member: int
    units: tuple[int, ...]


@dataclass
class Ledger:
    """Local; the server's. Plain values in and out, so that it can be saved."""

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
    """By member; each has at most one."""

    @property
    def num_units(self) -> int:
        return self.units_per_epoch * self.num_epochs

    @property
    def is_over(self) -> bool:
        """Whether every unit is done."""
        return self.num_done == self.num_units

    def deal(self, member: int, wanted: int) -> Lease | None:
        """Up to `wanted` units for a member that has none in hand; None if there are none just now."""
        assert member not in self.leases, f"worker {member} has units in hand"
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
        if not units:
            return None
        lease = self.leases[member] = Lease(self.num_leases, member, tuple(units))
        self.num_leases += 1
        return lease

    def done(self, member: int) -> Lease:
        """What a member had in hand was used."""
        lease = self.leases.pop(member)
        self.num_done += len(lease.units)
        return lease

    def lose(self, member: int) -> int:
        """A member is gone: what it had in hand is dealt out again, before anything else. Gives how many units."""
        lease = self.leases.pop(member, None)
        if lease is None:
            return 0
        self.returned.extend(lease.units)
        self.num_dealt_again += len(lease.units)
        return len(lease.units)

    def state(self) -> dict[str, Any]:
        """Pure: plain values for `restore`."""
        return {
            "next_unit": self.next_unit,
            "num_done": self.num_done,
            "num_leases": self.num_leases,
            "num_dealt_again": self.num_dealt_again,
            "returned": list(self.returned),
            "leases": [[lease.number, lease.member, list(lease.units)] for lease in self.leases.values()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Local: go on with what `state` gave."""
        for name in ("next_unit", "num_done", "num_leases", "num_dealt_again"):
            setattr(self, name, int(state[name]))
        self.returned = deque(int(unit) for unit in state["returned"])
        self.leases = {member: Lease(number, member, tuple(units)) for number, member, units in state["leases"]}

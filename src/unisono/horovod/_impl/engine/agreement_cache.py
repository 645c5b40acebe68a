"""A cache of agreements, so that a name that comes again costs one mark in a short vector. Pure.

Every rank of a set holds the same cache: it changes only with what all ranks heard, in the same order.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

from unisono.horovod._impl.engine.agreed_operation import Agreement


class Cache:
    """Numbered slots. When all `capacity` are taken, a new agreement gets the least recently used one."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._slots: list[Agreement | None] = []
        self._by_name: OrderedDict[str, int] = OrderedDict()
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def num_slots(self) -> int:
        """Number of slots ever used: the length of the vector of marks."""
        return len(self._slots)

    def slot(self, name: str) -> int | None:
        """Returns the slot of the agreement of that name; None if it is not cached."""
        return self._by_name.get(name)

    def at(self, slot: int) -> Agreement:
        """Returns the agreement in a slot, which must not be empty; it does not count as used."""
        held = self._slots[slot]
        assert held is not None, f"slot {slot} is empty"
        return held

    def use(self, slot: int) -> Agreement:
        """Returns the agreement in a slot, which is now the most recently used."""
        held = self.at(slot)
        self._by_name.move_to_end(held.name)
        return held

    def put(self, agreement: Agreement) -> str | None:
        """Adds an agreement; returns the name of the agreement that was replaced, if any."""
        if not self._capacity:
            return None
        gone = None
        if len(self._by_name) >= self._capacity:
            gone = next(iter(self._by_name))
            self.drop(gone)
        if self._free:
            slot = heapq.heappop(self._free)
            self._slots[slot] = agreement
        else:
            slot = len(self._slots)
            self._slots.append(agreement)
        self._by_name[agreement.name] = slot
        return gone

    def drop(self, name: str) -> None:
        """Removes the agreement of that name."""
        slot = self._by_name.pop(name)
        self._slots[slot] = None
        heapq.heappush(self._free, slot)

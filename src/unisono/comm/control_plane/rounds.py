"""The hub's record of object exchanges: which members' objects have arrived. Pure bookkeeping, no sockets."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

Delivery = tuple[Iterable[int], tuple[object, ...]]
"""Receivers and message."""


@dataclass
class Round:
    """One exchange: its members, the objects that have arrived, and the members already notified that it cannot be completed."""

    members: tuple[int, ...]
    objects: dict[int, bytes] = field(default_factory=dict)
    notified: set[int] = field(default_factory=set)

    @property
    def missing(self) -> list[int]:
        """Members that have not sent their object yet."""
        return [member for member in self.members if member not in self.objects]


class Rounds:
    """All exchanges in progress. A round ends when every member has sent its object or is lost."""

    def __init__(self) -> None:
        self._open: dict[str, Round] = {}

    def put(self, key: str, members: tuple[int, ...], rank: int, obj: bytes, lost: Collection[int]) -> list[Delivery]:
        """Notes `rank`'s object; returns the messages to send now."""
        this = self._open.setdefault(key, Round(members))
        if this.members != members:
            text = f"exchange {key!r} has members {list(this.members)} on some ranks but {list(members)} on rank {rank}"
            return [({rank, *this.objects}, ("clash", key, text))]
        this.objects[rank] = obj
        return self._finish_round(key, this, lost)

    def lose(self, rank: int, lost: Collection[int]) -> list[Delivery]:
        """Notes that `rank` is lost (it is among `lost`): rounds that wait for it cannot be completed. Returns the messages to
        send now."""
        concerned = [(key, this) for key, this in self._open.items() if rank in this.members]
        return [delivery for key, this in concerned for delivery in self._finish_round(key, this, lost)]

    def missing(self, key: str) -> list[int]:
        """Returns the members that have not yet sent their object."""
        this = self._open.get(key)
        return this.missing if this is not None else []

    def _finish_round(self, key: str, this: Round, lost: Collection[int]) -> list[Delivery]:
        """Ends a round that is complete or never can be; returns the messages to send: all objects, or the lost members."""
        missing = this.missing
        if not missing:
            del self._open[key]
            return [(this.members, ("all", key, [this.objects[member] for member in this.members]))]
        gone = [member for member in missing if member in lost]
        if not gone:
            return []
        if len(gone) == len(missing):
            del self._open[key]
        to_notify = set(this.objects) - this.notified
        this.notified |= to_notify
        for member in this.objects:
            this.objects[member] = b""  # it will not be delivered
        return [(to_notify, ("void", key, gone))]

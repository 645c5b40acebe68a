"""Numbers for objects that outlive `hvd.shutdown()`, such as optimisers: the names of their operations must be the same on all
ranks."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any
from weakref import ref

from unisono.horovod._impl.job.process_state import PROCESS

if TYPE_CHECKING:
    from unisono.horovod._impl.engine.process_set_channel import Channel
    from unisono.horovod._impl.job.process_sets import ProcessSet


class PersistentId:
    """The number of an object: 0, 1, 2, ... for each kind (`what`) and process set, in the order in which the objects are made,
    which is the same on all ranks.

    After the next `init` the objects that are used again get new numbers, in that order. So a process that comes then, and makes
    the same objects for the first time, finds the same numbers; and an object that still exists but is not used does not count.
    """

    def __init__(self, what: str, process_set: ProcessSet, owner: object = None) -> None:
        self.what = what
        self.process_set = process_set
        self._owner = None if owner is None else ref(owner)
        self._number = 0
        self._drawn_from: ref[Channel] | None = None
        PROCESS.add_persistent_id(self)

    @property
    def owner(self) -> Any:
        """The object that has the number; None once it is gone. Local."""
        return None if self._owner is None else self._owner()

    @property
    def number(self) -> int:
        """The number, which is drawn once after each `init`. Local."""
        channel = self.process_set.channel()
        if self._drawn_from is None:
            self._draw_number(channel)
        elif self._drawn_from() is not channel:
            gc.collect()  # what waits to be collected on some ranks only would count there only
            for thing in PROCESS.persistent_ids():
                if (thing.what, thing.process_set) == (self.what, self.process_set):
                    thing._draw_new_number(channel)
        return self._number

    def _draw_number(self, channel: Channel) -> None:
        """Takes the next number of this kind from the channel."""
        self._number, self._drawn_from = channel.persistent_number(self.what), ref(channel)

    def _draw_new_number(self, channel: Channel) -> None:
        """Takes a new number if the old one was drawn before the last `init`; does nothing if none was ever drawn."""
        if self._drawn_from is not None and self._drawn_from() is not channel:
            self._draw_number(channel)

"""Numbers for things that outlive `hvd.shutdown()`, such as optimisers: operations in their names must be alike on all ranks."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any
from weakref import ref

from unisono.horovod._impl.job.process_state import PROCESS

if TYPE_CHECKING:
    from unisono.horovod._impl.engine.process_set_channel import Channel
    from unisono.horovod._impl.job.process_sets import ProcessSet


class PersistentId:
    """0, 1, 2, ... for each `what` of a process set, in the order in which they are made, which is the same on all ranks.

    After the next `init` those that are used again get new numbers, in that order. So a process that comes then, and makes the same
    things for the first time, finds the same numbers; and what is only still there, as a variable that nobody looks at, does not
    count.
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
        """Local: what has the number; None once it is gone."""
        return None if self._owner is None else self._owner()

    @property
    def number(self) -> int:
        """Local: drawn once after each `init`."""
        channel = self.process_set.channel()
        if self._drawn_from is None:
            self._draw(channel)
        elif self._drawn_from() is not channel:
            gc.collect()  # what waits to be collected on some ranks only would count there only
            for thing in PROCESS.persistent_ids():
                if (thing.what, thing.process_set) == (self.what, self.process_set):
                    thing._draw_again(channel)
        return self._number

    def _draw(self, channel: Channel) -> None:
        self._number, self._drawn_from = channel.persistent_number(self.what), ref(channel)

    def _draw_again(self, channel: Channel) -> None:
        if self._drawn_from is not None and self._drawn_from() is not channel:
            self._draw(channel)

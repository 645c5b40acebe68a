"""Numbers for operations in flight, as programs hold them until they synchronise. Local."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

from unisono.horovod._impl.engine.operation_entry import Entry

Finish = Callable[[Entry], Any]
"""What the caller gets of an entry that is done."""


class Handles:
    """Those of one process. Any thread may use them."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._held: dict[int, tuple[Entry, Finish]] = {}
        self._lock = threading.Lock()

    def add(self, entry: Entry, finish: Finish) -> int:
        """Not blocking: a number that was never given out before."""
        with self._lock:
            number = next(self._numbers)
            self._held[number] = entry, finish
        return number

    def poll(self, handle: int) -> bool:
        """Not blocking: whether `synchronize` would return at once."""
        held = self._held.get(handle)
        if held is None:
            raise ValueError(f"handle {handle!r} is not in flight; it was synchronised before, or never given out")
        return held[0].done()

    def when_done(self, handle: int, call: Callable[[], None]) -> None:
        """Not blocking: `call` when `synchronize` would return at once; see `Entry.when_done`."""
        self._held[handle][0].when_done(call)

    def wait(self, handle: int) -> None:
        """Blocking: until `synchronize` would return at once."""
        done = threading.Event()
        self.when_done(handle, done.set)
        done.wait()

    def forget(self, handle: int) -> None:
        """Not blocking: nobody will ask for the result any more."""
        self._held.pop(handle, None)

    def forget_all(self) -> None:
        """Not blocking: those from before the last `shutdown`."""
        self._held.clear()

    def synchronize(self, handle: int) -> Any:
        """Blocking: the result, after which the handle is gone; None for one that is not in flight."""
        held = self._held.get(handle)
        if held is None:
            return None
        entry, finish = held
        try:
            entry.wait()
        finally:
            if entry.done():  # else somebody has interrupted the waiting, and may wait again
                self.forget(handle)
        return finish(entry)

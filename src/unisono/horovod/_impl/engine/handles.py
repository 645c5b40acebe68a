"""Handles: numbers for operations in flight, which programs hold until they synchronise. Local."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

from unisono.horovod._impl.engine.operation_entry import Entry

Finish = Callable[[Entry], Any]
"""What the caller gets of an entry that is done."""


class Handles:
    """The handles of one process. Any thread may use them."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._held: dict[int, tuple[Entry, Finish]] = {}
        self._lock = threading.Lock()

    def add(self, entry: Entry, finish: Finish) -> int:
        """Registers an operation whose result `finish` makes of its entry, and returns its handle. Not blocking."""
        with self._lock:
            number = next(self._numbers)
            self._held[number] = entry, finish
        return number

    def poll(self, handle: int) -> bool:
        """Whether `synchronize` would return at once. Not blocking."""
        held = self._held.get(handle)
        if held is None:
            raise ValueError(f"handle {handle!r} is not in flight; it was synchronized before, or never existed")
        return held[0].done()

    def when_done(self, handle: int, call: Callable[[], None]) -> None:
        """Calls `call` when `synchronize` would return at once; see `Entry.when_done`. Not blocking."""
        self._held[handle][0].when_done(call)

    def wait(self, handle: int) -> None:
        """Waits until `synchronize` would return at once. Blocking."""
        done = threading.Event()
        self.when_done(handle, done.set)
        done.wait()

    def forget(self, handle: int) -> None:
        """Discards a handle whose result is no longer wanted. Not blocking."""
        self._held.pop(handle, None)

    def forget_all(self) -> None:
        """Discards the handles from before the last `shutdown`. Not blocking."""
        self._held.clear()

    def synchronize(self, handle: int) -> Any:
        """Waits for an operation and returns its result; the handle is used up. None for a handle that is not in flight.
        Blocking."""
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

"""A cache of the last few values that were expensive to read."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class RecentlyUsed(Generic[Key, Value]):
    """A cache of at most `most` values by key; the least recently used is dropped, through `close` where it holds something
    open. Local: a pickled or forked one starts empty, as open files belong to the process that opened them."""

    def __init__(self, most: int, close: Callable[[Value], object] | None = None) -> None:
        self._most = max(1, most)
        self._close = close
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._process = os.getpid()

    def __contains__(self, key: Key) -> bool:
        return key in self._kept and self._process == os.getpid()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """Returns the value of this key; it is made where it is not in the cache."""
        if self._process != os.getpid():
            self._kept, self._process = OrderedDict(), os.getpid()
        if key not in self._kept:
            made = make()
            while len(self._kept) >= self._most:
                self._close_value(self._kept.popitem(last=False)[1])
            self._kept[key] = made
        self._kept.move_to_end(key)
        return self._kept[key]

    def clear(self) -> None:
        """Removes all values, and closes them if they can be closed."""
        while self._kept:
            self._close_value(self._kept.popitem()[1])

    def _close_value(self, value: Value) -> None:
        if self._close is not None:
            self._close(value)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_kept": OrderedDict()}

"""An output of the launcher that never makes it wait: what does not fit now is written when there is room."""

from __future__ import annotations

import os
import select
import selectors
from typing import Protocol

MAX_PENDING_BYTES = 64 << 20
"""With more than this unread by whoever reads our output, the ranks wait too, as they would without a launcher."""


class Source(Protocol):
    """Something whose lines end in a sink. Local, not blocking."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Sink:
    """Standard output or standard error of the launcher."""

    def __init__(self, selector: selectors.BaseSelector, fd: int) -> None:
        self.fd = fd
        self.sources: set[Source] = set()
        """The streams of the ranks that end here."""
        self.error: OSError | None = None
        self._selector = selector
        self._pending = bytearray()
        self._holding_back = False

    @property
    def empty(self) -> bool:
        return not self._pending

    def write(self, data: bytes) -> None:
        """Local, not blocking: `data` are whole lines."""
        if self.error is not None or not data:
            return
        if not self._pending:
            try:
                self._selector.register(self.fd, selectors.EVENT_WRITE, self._write_some)
            except PermissionError:  # a plain file cannot be watched and needs not: it always has room
                self._write_all(memoryview(data))
                return
        self._pending += data
        if len(self._pending) > MAX_PENDING_BYTES:
            self._holding_back = True
            for source in self.sources:
                source.pause()

    def drop(self) -> None:
        """Local: forget what is not written yet."""
        if self._pending:
            self._selector.unregister(self.fd)
            self._pending.clear()

    def _write_some(self) -> None:
        # A pipe or terminal that is said to have room takes at least PIPE_BUF bytes without blocking, but perhaps not more.
        if not self._pending:
            return
        try:
            del self._pending[: os.write(self.fd, self._pending[: select.PIPE_BUF])]
        except BlockingIOError:  # somebody else made the terminal non-blocking
            return
        except OSError as error:
            self._break(error)
            return
        if not self._pending:
            self._selector.unregister(self.fd)
        if len(self._pending) < MAX_PENDING_BYTES // 2:
            self._let_go()

    def _write_all(self, data: memoryview) -> None:
        while data:
            try:
                data = data[os.write(self.fd, data) :]
            except OSError as error:
                self._break(error)
                return

    def _break(self, error: OSError) -> None:
        """Nobody reads us any more, or nothing has room: what is written from now on is lost."""
        self.error = error
        self.drop()
        self._let_go()

    def _let_go(self) -> None:
        if self._holding_back:
            self._holding_back = False
            for source in self.sources:
                source.resume()

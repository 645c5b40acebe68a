"""An output of the launcher that never makes it wait: what does not fit now is written when there is room."""

from __future__ import annotations

import os
import select
import selectors
from typing import Protocol

MAX_PENDING_BYTES = 64 << 20
"""With more than this unread by whoever reads our output, the ranks wait too, as they would without a launcher."""
REPLACE_LINE = b"\r\x1b[K"
"""To the begin of the line, and erase it."""


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
        self._open = b""
        """What ends the line that `pass_on` has begun, if it has."""

    @property
    def empty(self) -> bool:
        return not self._pending

    def write(self, lines: bytes) -> None:
        """Local, not blocking: `lines` are whole lines."""
        if lines:
            ending, self._open = self._open, b""
            self._put(ending + lines)

    def pass_on(self, data: bytes) -> None:
        """Local, not blocking: `data` as it is, for a terminal. Lines that are written before it ends its line come below what it
        has printed of it, or take the place of a line that is being redrawn."""
        line = data.rpartition(b"\n")[2]
        before = b"" if b"\n" in data else self._open
        self._open = REPLACE_LINE if b"\r" in line or before == REPLACE_LINE else b"\n" if line else before
        self._put(data)

    def end_line(self) -> None:
        """Local, not blocking: end what `pass_on` has begun."""
        ending, self._open = self._open, b""
        self._put(ending)

    def _put(self, data: bytes) -> None:
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

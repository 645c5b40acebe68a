"""An output of the launcher that never blocks: what does not fit now is written when the reader has read some."""

from __future__ import annotations

import os
import select
import selectors
from typing import Protocol

MAX_PENDING_BYTES = 64 << 20
"""With more bytes than this unread, reading from the ranks pauses, so that they wait as they would without a launcher."""
REPLACE_LINE = b"\r\x1b[K"
"""Moves the cursor to the start of the line and erases the line."""


class Source(Protocol):
    """A source of lines for a sink, which can pause and resume it. Local, not blocking."""

    def pause(self) -> None:
        """Stops giving output to the sink."""

    def resume(self) -> None:
        """Gives output to the sink again."""


class Sink:
    """Standard output or standard error of the launcher."""

    def __init__(self, selector: selectors.BaseSelector, fd: int) -> None:
        self.fd = fd
        self.sources: set[Source] = set()
        """The streams of the ranks that end here."""
        self.error: OSError | None = None
        self._selector = selector
        self._pending = bytearray()
        self._sources_paused = False
        self._line_ending = b""
        """Bytes that end the line that `write_raw` has begun; empty where there is none."""

    @property
    def empty(self) -> bool:
        """Whether everything is written."""
        return not self._pending

    def write(self, lines: bytes) -> None:
        """Local, not blocking: writes whole lines."""
        if lines:
            ending, self._line_ending = self._line_ending, b""
            self._put(ending + lines)

    def write_raw(self, data: bytes) -> None:
        """Local, not blocking: writes bytes unchanged, for a terminal. Lines that are written before it ends its line come below
        what it has printed of it, or take the place of a line that is being redrawn."""
        line = data.rpartition(b"\n")[2]
        before = b"" if b"\n" in data else self._line_ending
        self._line_ending = REPLACE_LINE if b"\r" in line or before == REPLACE_LINE else b"\n" if line else before
        self._put(data)

    def end_line(self) -> None:
        """Local, not blocking: ends the line that `write_raw` has begun."""
        ending, self._line_ending = self._line_ending, b""
        self._put(ending)

    def _put(self, data: bytes) -> None:
        """Queues bytes, and pauses the sources if many are pending; a plain file gets them at once. After an error, drops them."""
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
            self._sources_paused = True
            for source in self.sources:
                source.pause()

    def drop(self) -> None:
        """Local: discards what is not written yet."""
        if self._pending:
            self._selector.unregister(self.fd)
            self._pending.clear()

    def _write_some(self) -> None:
        """Not blocking: writes as much of the pending bytes as is safe, and resumes the sources once few are left."""
        # A pipe or terminal that is said to have room takes at least PIPE_BUF bytes without blocking, but perhaps not more.
        if not self._pending:
            return
        try:
            del self._pending[: os.write(self.fd, self._pending[: select.PIPE_BUF])]
        except BlockingIOError:  # somebody else made the terminal non-blocking
            return
        except OSError as error:
            self._fail(error)
            return
        if not self._pending:
            self._selector.unregister(self.fd)
        if len(self._pending) < MAX_PENDING_BYTES // 2:
            self._resume_sources()

    def _write_all(self, data: memoryview) -> None:
        """Blocking: writes these bytes to a plain file."""
        while data:
            try:
                data = data[os.write(self.fd, data) :]
            except OSError as error:
                self._fail(error)
                return

    def _fail(self, error: OSError) -> None:
        """Handles a reader that has left or a full disk: what is written from now on is lost."""
        self.error = error
        self.drop()
        self._resume_sources()

    def _resume_sources(self) -> None:
        """Lets the sources go on if they were paused."""
        if self._sources_paused:
            self._sources_paused = False
            for source in self.sources:
                source.resume()

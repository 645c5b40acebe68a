"""A file of Chrome's trace events that is whole JSON at every moment, also after kill -9. Local.

`put` only appends an event to a queue; a thread makes text of it and writes. The file is a list with much blank space before
its `]`, and events are written into that. The system writes a page as a whole, but may be killed between two: so no event lies
across pages, and the `]` must move only when the space is used up, each time twice as far.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic, time

FLUSH_S = 0.03
"""How long events are collected before they are written."""
PAGE_BYTES = 4096
"""Of all systems, or a divisor of it."""
LEAST_SPACE_BYTES, MOST_SPACE_BYTES = 1 << 20, 64 << 20
"""By which the file grows."""
LONGEST_TEXT = 500
"""Characters of a name or an argument."""
LONGEST_TEXT_BYTES, LETTER_BYTES = 3000, 12
"""What they may take in the file, as an event must fit into a page; and the most that one letter takes."""
MOST_WAITING = 1_000_000
"""Events that the file system has not taken: more of them would cost the training its memory."""

Record = tuple[str, Sequence[str], str, float, Mapping[str, str] | None]
"""Phase, the titles of the tensors that it is about, what, when (`monotonic`), arguments."""

BEGIN, END, INSTANT, MARK = "B", "E", "X", "i"


class TraceFile:
    """A new trace file; `OSError` if it cannot be written. Later errors end the file with a warning, and nothing else."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_over = False
        """Whether it takes no more events."""
        self._records: deque[Record] = deque()
        self._pids: dict[str, int] = {}
        self._began_at = monotonic()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self._at, self._end = 0, 0
        """Where the blank space begins, and where the `]` stands."""
        try:
            self._begin()
        except BaseException:
            os.close(self._file)
            raise
        self._some, self._last = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._write_until_closed, name="unisono-horovod-timeline", daemon=True)
        self._thread.start()

    def put(self, phase: str, titles: Sequence[str], what: str, at: float, arguments: Mapping[str, str] | None = None) -> None:
        """Adds the same event for each of the tensors. Not blocking; any thread."""
        if self.is_over:
            return
        self._records.append((phase, titles, what, at, arguments))
        if not self._some.is_set():
            self._some.set()
        if len(self._records) > MOST_WAITING:
            self.is_over = True
            _warn_of_end(self.path, f"{MOST_WAITING} events wait to be written")

    def close(self) -> None:
        """Closes the file. Idempotent. Blocking until all is written."""
        self._last.set()
        self._some.set()
        self._thread.join()

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _write_until_closed(self) -> None:
        """The writing thread: writes the waiting events at short intervals until the file is closed; an error ends it with a
        warning."""
        try:
            while not self._last.is_set():
                self._some.wait()
                self._last.wait(FLUSH_S)
                self._some.clear()
                self._write_records()
            self.is_over = True
            self._write_records()
            self._finish()
        except OSError as error:
            self.is_over = True
            _warn_of_end(self.path, error.strerror or str(error))
        finally:
            self._records.clear()
            os.close(self._file)

    def _write_records(self) -> None:
        """Writes all waiting events, none of them across the end of a page."""
        lines: list[str] = []
        num_bytes = 0
        while self._records:
            for line in self._lines_of(*self._records.popleft()):
                if num_bytes + len(line) > PAGE_BYTES - self._at % PAGE_BYTES:
                    self._write_into_page(lines)
                    self._at += -self._at % PAGE_BYTES
                    lines, num_bytes = [], 0
                lines.append(line)
                num_bytes += len(line)
        self._write_into_page(lines)

    def _begin(self) -> None:
        """Writes the beginning of the list; errors here are raised to the caller."""
        name = _naming_event(0, "unisono", start_time_since_epoch_in_micros=int(time() * 1e6))
        first = _event_text(name) + _event_text(_sorting_event(0))
        self._write_at(f"[{first[1:]}]", 0)
        self._at = self._end = len(first)
        self._make_space()

    def _write_into_page(self, lines: Sequence[str]) -> None:
        """Writes lines that fit into the rest of the page."""
        text = "".join(lines)
        while self._at + len(text) > self._end:
            self._make_space()
        try:
            self._write_at(text, self._at)
        except OSError:
            with suppress(OSError):  # a part of it may be there
                self._write_at(" " * len(text), self._at)
            raise
        self._at += len(text)

    def _make_space(self) -> None:
        """Extends the file. Only between the last two lines of this method is it not valid JSON."""
        end = self._end + min(max(self._end, LEAST_SPACE_BYTES), MOST_SPACE_BYTES)
        end += -end % PAGE_BYTES - 1
        for begin in range(self._end + 1, end, LEAST_SPACE_BYTES):
            self._write_at(" " * min(LEAST_SPACE_BYTES, end - begin), begin)
        self._write_at("]", end)
        self._write_at(" ", self._end)
        self._end = end

    def _finish(self) -> None:
        """Cuts off the blank space that is left."""
        end = min(self._at, self._end)
        self._write_at("]", end)
        os.ftruncate(self._file, end + 1)

    def _write_at(self, text: str, at: int) -> None:
        """Writes a text to this place in the file."""
        data = memoryview(text.encode("ascii"))
        while data:
            written = os.pwrite(self._file, data, at)
            data, at = data[written:], at + written

    def _lines_of(self, phase: str, titles: Sequence[str], what: str, at: float, arguments: Mapping[str, str] | None) -> list[str]:
        """Returns the lines of an event, one for each title; a title that is new gets lines with its name and its place first."""
        micros = max(0.0, at - self._began_at) * 1e6
        lines = []
        name = f',"name":{json.dumps(_shortened(what))}' if phase != END else ""
        more = {INSTANT: ',"dur":0', MARK: ',"s":"g"'}.get(phase, "")
        head = f',\n{{"ph":"{phase}","ts":{micros:.1f},"tid":0{name}{more},"pid":'
        shown = {key: _shortened(value) for key, value in arguments.items()} if arguments else {}
        tail = f',"args":{json.dumps(shown)}}}' if shown else "}"
        for title in titles:
            pid = self._pids.get(title)
            if pid is None:
                pid = self._pids[title] = len(self._pids) + 1
                lines += [_event_text(_naming_event(pid, _shortened(title))), _event_text(_sorting_event(pid))]
            lines.append(f"{head}{pid}{tail}")
        return lines or [f"{head}0{tail}"]


def _naming_event(pid: int, name: str, **more: int) -> dict[str, object]:
    """Returns the event that names the line `pid` of the timeline."""
    return {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name, **more}}


def _sorting_event(pid: int) -> dict[str, object]:
    """Returns the event that puts the line `pid` of the timeline in its place."""
    return {"name": "process_sort_index", "ph": "M", "pid": pid, "args": {"sort_index": pid}}


def _event_text(event: Mapping[str, object]) -> str:
    """Returns the text of an event after the first: with the comma in front."""
    return f",\n{json.dumps(event)}"


def _shortened(text: str) -> str:
    """Returns a text of bounded length, also in JSON; a longer one ends in three dots."""
    short = text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 3]}..."
    if len(json.dumps(short)) <= LONGEST_TEXT_BYTES:
        return short
    return f"{text[: LONGEST_TEXT_BYTES // LETTER_BYTES - 3]}..."


def _warn_of_end(path: str, reason: str) -> None:
    """Prints that the timeline ends early, and why."""
    print(
        f"unisono: the timeline ends here, as {path} can no longer be written: {reason}; the training continues",
        file=sys.stderr,
        flush=True,
    )

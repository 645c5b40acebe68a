"""The board: shared memory in which the ranks of one machine publish how far they are.

Every rank owns one row, in its own segment, which all others map:

    flag         how many phases of collectives this rank has entered; the others wait on it
    sleepers     for each other rank, whether it sleeps on the flag: waking nobody would cost a system call for each phase
    doorbell     changes whenever a message for this rank arrives or is taken (see mailbox.py)
    two pages    of the running collective: its text (all ranks must show the same), where the buffers lie, and small data
    boxes        for each destination, the slots of point-to-point messages (see boxes.py)

Collectives alternate between the two pages. A rank writes a page again only after everybody arrived at the collective between,
hence has finished the one before, so a small collective needs a single phase.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from time import perf_counter

from torch import Tensor

from unisono.comm.base import Call, Watch
from unisono.comm.shared_memory.futex import Futex
from unisono.comm.shared_memory.segments import Arena, Place, Segment

TEXT_BYTES = 248
SMALL_BYTES = 32 << 10
"""Collectives up to this size travel inside the page."""
NUM_SLOTS = 16
SLOT_BYTES = 4096
MAX_SLEEP_S = 0.1
"""Longest sleep before a check whether the peers are alive."""
SPIN_S = 50e-6
_PLACE = struct.Struct("<qQQ")
_INLINE = -1
_MOST_TEXTS = 1024
_LINE = 64


PackedPlace = tuple[int, int, int]
"""File, offset, number of bytes."""


def aligned(num_bytes: int) -> int:
    """Returns a number of bytes rounded up to whole cache lines."""
    return _rounded_up(num_bytes, _LINE)


def packed_place(place: Place | None, num_bytes: int, offset: int = 0) -> bytes:
    """Returns the place of a buffer as it is written on a page: in shared memory, or in the page itself (None) at `offset`."""
    fd, where = (_INLINE, offset) if place is None else (place.fd, place.offset + offset)
    return _PLACE.pack(fd, where, num_bytes)


def _rounded_up(value: int, to: int) -> int:
    """Returns `value` rounded up to a multiple of `to`."""
    return (value + to - 1) // to * to


class Layout:
    """Offsets in a row for a group of `size` ranks."""

    def __init__(self, size: int) -> None:
        self.num_places = max(64, size)
        self.doorbell = _LINE
        self.sleepers = 2 * _LINE
        page = _rounded_up(self.sleepers + size, 4096)
        places_bytes = self.num_places * _PLACE.size
        self.small = _rounded_up(TEXT_BYTES + places_bytes, 4096)
        self.page_bytes = self.small + SMALL_BYTES
        self.pages = (page, page + self.page_bytes)
        self.boxes = page + 2 * self.page_bytes
        self.num_bytes = self.boxes + size * NUM_SLOTS * SLOT_BYTES


class Board:
    """All rows of the board, as one rank sees them."""

    def __init__(self, rank: int, rows: Sequence[Segment], pids: Sequence[int], arena: Arena, spin: bool) -> None:
        self.layout = Layout(len(rows))
        self.rank = rank
        self.size = len(rows)
        self.futex = Futex()
        self.spin_s = SPIN_S if spin else 0.0
        self.pids = pids
        self._arena = arena
        self._bytes = [row.bytes for row in rows]
        self._addresses = [row.address for row in rows]
        self.views = [memoryview(row.map) for row in rows]
        self.words = [view.cast("I") for view in self.views]
        self._phase = 0
        self.page = 0
        self._texts: dict[object, bytes] = {}
        self._others = [r for r in range(len(rows)) if r != rank]
        self._no_sleepers = bytes(len(rows))
        at = self.layout.sleepers
        self._sleepers = self.views[rank][at : at + len(rows)]
        self.on_idle: Callable[[float], float] = lambda _: MAX_SLEEP_S
        """Called before each sleep of a collective with the length of the last one (0: none yet); gives that of the next."""

    def close(self) -> None:
        """Releases the views of the memory, which stays mapped as long as tensors use it."""
        for view in (self._sleepers, *self.words, *self.views):
            view.release()
        self._bytes.clear()

    def row(self, rank: int) -> Tensor:
        """Returns all bytes of a rank's row."""
        return self._bytes[rank]

    def ring(self, rank: int, at: int, value: int) -> None:
        """Not blocking: sets the word at byte `at` of a rank's row, and wakes the ranks that sleep on it."""
        self.futex.fence()
        self.words[rank][at // 4] = value
        self.futex.wake(self._addresses[rank] + at)

    def sleep(self, rank: int, at: int, value: int, timeout_s: float) -> None:
        """Blocking until the word at byte `at` of a rank's row is no longer `value`, or the rank is woken, or the time is over."""
        self.futex.wait(self._addresses[rank] + at, value, timeout_s)

    # ---- collectives -----------------------------------------------------------------------------------------------

    def turn_page(self, head: bytes) -> None:
        """Begins a collective: writes its text, and places if they are known, on this rank's next page. Others see it after the
        next `arrive`."""
        self.page ^= 1
        start = self.layout.pages[self.page]
        self.views[self.rank][start : start + len(head)] = head

    def text_of(self, call: Call) -> bytes:
        """Returns the text of a call on a page: the same on all ranks that make the same call."""
        key = (call.kind, call.detail, *call.shapes)
        text = self._texts.get(key)
        if text is None:
            if len(self._texts) >= _MOST_TEXTS:
                self._texts.clear()
            shown = str(call).encode()
            digest = f" #{zlib.crc32(shown):08x}".encode()
            text = self._texts[key] = (shown[: TEXT_BYTES - len(digest)] + digest).ljust(TEXT_BYTES, b"\0")
        return text

    def heads(self, num_bytes: int) -> tuple[bytes, ...]:
        """Returns the first bytes of the current pages of all other ranks."""
        start = self.layout.pages[self.page]
        end = start + num_bytes
        return tuple([bytes(self.views[r][start:end]) for r in self._others])

    def refuse_other_calls(self, text: bytes, watch: Watch) -> None:
        """Raises if another rank runs another collective than ours, whose text is `text`."""
        for r, head in zip(self._others, self.heads(TEXT_BYTES), strict=True):
            if head != text:
                shown = head.rstrip(b"\0").decode(errors="replace")
                raise watch.mismatch(r, shown.rsplit(" #", 1)[0])

    def small_data(self, rank: int, num_bytes: int, offset: int = 0, page: int | None = None) -> Tensor:
        """Returns the bytes of a rank's page (by default the current one) that hold small data."""
        start = self.layout.pages[self.page if page is None else page] + self.layout.small + offset
        return self._bytes[rank][start : start + num_bytes]

    def write_place(self, index: int, place: Place | None, num_bytes: int, offset: int = 0) -> None:
        """Writes the place of buffer `index` on this rank's page."""
        start = self.layout.pages[self.page] + TEXT_BYTES + index * _PLACE.size
        self.views[self.rank][start : start + _PLACE.size] = packed_place(place, num_bytes, offset)

    def place(self, rank: int, index: int) -> PackedPlace:
        """Returns place `index` of a rank's page: file, offset, number of bytes."""
        at = self.layout.pages[self.page] + TEXT_BYTES + index * _PLACE.size
        return _PLACE.unpack_from(self.views[rank], at)

    def bytes_at(self, rank: int, place: PackedPlace) -> Tensor:
        """Returns the bytes at a place of a rank."""
        fd, where, num_bytes = place
        if fd == _INLINE:
            return self.small_data(rank, num_bytes, where)
        segment = self._arena.own_segment(fd) if rank == self.rank else self._arena.peer_segment(self.pids[rank], fd)
        return segment.bytes[where : where + num_bytes]

    def peer_bytes(self, rank: int, index: int) -> Tensor:
        """Returns the bytes of a rank's buffer `index`."""
        return self.bytes_at(rank, self.place(rank, index))

    def arrive(self, watch: Watch) -> None:
        """Blocking: enters the next phase and waits until all others have entered it."""
        self._phase = phase = (self._phase + 1) & 0xFFFFFFFF
        futex = self.futex
        futex.fence()
        self.words[self.rank][0] = phase
        futex.full_fence()
        if bytes(self._sleepers) != self._no_sleepers:
            futex.wake(self._addresses[self.rank])
        for r in self._others:
            word = self.words[r]
            if (word[0] - phase) & 0x80000000:
                self._await_phase(r, phase, watch)
        futex.fence()

    def _await_phase(self, rank: int, phase: int, watch: Watch) -> None:
        """Blocking until a rank has entered phase `phase`: spins first, then sleeps."""
        word = self.words[rank]
        if self.spin_s:
            end = perf_counter() + self.spin_s
            while perf_counter() < end:
                if not (word[0] - phase) & 0x80000000:
                    return
        asleep = self.layout.sleepers + self.rank
        self.views[rank][asleep] = 1
        slice_s = 0.0
        self.futex.full_fence()  # if it now writes its flag, it sees that we sleep, or the system call sees what it wrote
        while (seen := word[0] - phase) & 0x80000000:
            slice_s = self.on_idle(slice_s)
            self.futex.wait(self._addresses[rank], (seen + phase) & 0xFFFFFFFF, slice_s)
            if (word[0] - phase) & 0x80000000:
                watch.poll()
        self.views[rank][asleep] = 0

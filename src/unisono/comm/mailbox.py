"""Point-to-point messages through the board: one box of slots for each pair, filled by the sender, emptied by the receiver.

A slot is FREE (the sender's) or FULL (the receiver's), so it has one writer at any time and needs no atomic operation. Small
messages lie in the slot; of large ones it says where they lie, and it becomes FREE when the receiver has copied them. Every
change rings the other rank's doorbell: a word that gets a value never seen before, so that a sleeper cannot miss it.
"""

from __future__ import annotations

import struct
from collections import deque
from time import monotonic_ns, perf_counter

from torch import Tensor

from unisono.comm.base import ANY, Envelope, Watch
from unisono.comm.board import NUM_SLOTS, SLICE_S, SLOT_BYTES, Board
from unisono.comm.driver import Work, not_done
from unisono.comm.segments import Arena
from unisono.errors import CommError

_FREE, _FULL = 0, 1
_SLOT = struct.Struct("<IIQQQqQ")  # state, tag, number, time, bytes, fd (-1: in the slot), offset
_INLINE_AT = 64
_INLINE_BYTES = SLOT_BYTES - _INLINE_AT


class SendWork(Work[None]):
    def __init__(self, mailbox: Mailbox, buf: Tensor, dest: int, tag: int, watch: Watch) -> None:
        self.mailbox = mailbox
        self.buf: Tensor | None = buf
        self.dest = dest
        self.tag = tag
        self.watch = watch
        self.slot: int | None = None
        """Byte position of the slot that holds a large message until it is taken."""
        self.finished = False

    def done(self) -> bool:
        self.mailbox.progress()
        return self.finished

    def wait(self, timeout_s: float | None = None) -> None:
        self.mailbox.wait(self, timeout_s)


class RecvWork(Work[Envelope]):
    def __init__(self, mailbox: Mailbox, buf: Tensor, source: int, tag: int, watch: Watch) -> None:
        self.mailbox = mailbox
        self.buf = buf
        self.source = source
        self.tag = tag
        self.watch = watch
        self.envelope: Envelope | None = None
        self.error: CommError | None = None

    @property
    def finished(self) -> bool:
        return self.envelope is not None or self.error is not None

    def done(self) -> bool:
        self.mailbox.progress()
        return self.finished

    def wait(self, timeout_s: float | None = None) -> Envelope:
        self.mailbox.wait(self, timeout_s)
        if self.error is not None:
            raise self.error
        assert self.envelope is not None
        return self.envelope


class Mailbox:
    """The messages of one rank. Progress happens in `done`, `wait` and when something is started."""

    def __init__(self, board: Board, arena: Arena, rank: int, size: int) -> None:
        self._board = board
        self._arena = arena
        self._rank = rank
        self._size = size
        self._backlog: list[deque[SendWork]] = [deque() for _ in range(size)]
        """Sends that found no free slot, by destination."""
        self._untaken: list[SendWork] = []
        self._receives: list[RecvWork] = []
        self._numbers = [0] * size
        self._taken = [0] * size
        self._bells = 0

    def start_send(self, buf: Tensor, dest: int, tag: int, watch: Watch) -> SendWork:
        work = SendWork(self, buf, dest, tag, watch)
        self._backlog[dest].append(work)
        self._post(dest)
        return work

    def start_recv(self, buf: Tensor, source: int, tag: int, watch: Watch) -> RecvWork:
        work = RecvWork(self, buf, source, tag, watch)
        self._receives.append(work)
        self.progress()
        return work

    def progress(self) -> None:
        """Not blocking: post what waits for a slot, finish what was taken, receive what has come."""
        self._untaken = [work for work in self._untaken if not self._finish_if_taken(work)]
        for dest, backlog in enumerate(self._backlog):
            if backlog:
                self._post(dest)
        if self._receives:
            self._receive_in_order()

    def wait(self, work: SendWork | RecvWork, timeout_s: float | None) -> None:
        """Blocking: until `work` is finished, sleeping on this rank's doorbell."""
        give_up_at = None if timeout_s is None else perf_counter() + timeout_s
        bell = self._board.layout.doorbell
        words = self._board.words[self._rank]
        spin_until = perf_counter() + self._board.spin_s
        while True:
            heard = words[bell // 4]
            self._board.futex.fence()
            self.progress()
            if work.finished:
                return
            now = perf_counter()
            if now < spin_until:
                continue
            if give_up_at is not None and now >= give_up_at:
                raise not_done(work.watch.call, timeout_s)
            slice_s = SLICE_S if give_up_at is None else min(SLICE_S, give_up_at - now)
            self._board.sleep(self._rank, bell, heard, slice_s)
            if words[bell // 4] == heard:
                work.watch.poll()

    # ---- sending ---------------------------------------------------------------------------------------------------

    def _slots(self, dest: int) -> range:
        start = self._board.layout.boxes + dest * NUM_SLOTS * SLOT_BYTES
        return range(start, start + NUM_SLOTS * SLOT_BYTES, SLOT_BYTES)

    def _post(self, dest: int) -> None:
        backlog, words = self._backlog[dest], self._board.words[self._rank]
        posted = False
        for at in self._slots(dest):
            if not backlog:
                break
            if words[at // 4] == _FREE and not any(work.slot == at and work.dest == dest for work in self._untaken):
                self._fill(at, backlog.popleft())
                posted = True
        if posted:
            self._board.futex.fence()
            words[self._board.layout.posted // 4 + dest] = self._numbers[dest] & 0xFFFFFFFF
            self._ring(dest)

    def _fill(self, at: int, work: SendWork) -> None:
        buf, view = work.buf, self._board.views[self._rank]
        assert buf is not None
        number, self._numbers[work.dest] = self._numbers[work.dest], self._numbers[work.dest] + 1
        if buf.nbytes <= _INLINE_BYTES:
            self._board.row(self._rank)[at + _INLINE_AT : at + _INLINE_AT + buf.nbytes].view(buf.dtype).copy_(buf)
            fd, offset, work.finished = -1, 0, True
        else:
            place = self._arena.place(buf)
            if place is None:
                staged = self._arena.empty(buf.numel(), buf.dtype)
                staged.copy_(buf)
                place, work.buf = self._arena.place(staged), staged
                assert place is not None
            fd, offset, work.slot = place.fd, place.offset, at
            self._untaken.append(work)
        _SLOT.pack_into(view, at, _FREE, work.tag, number, monotonic_ns(), buf.nbytes, fd, offset)
        self._board.futex.fence()
        self._board.words[self._rank][at // 4] = _FULL

    def _finish_if_taken(self, work: SendWork) -> bool:
        assert work.slot is not None
        if self._board.words[self._rank][work.slot // 4] != _FREE:
            return False
        work.finished, work.buf = True, None
        return True

    def _ring(self, rank: int) -> None:
        """Give a rank's doorbell a value of our own; the clock makes it new, the rank tells it from another's."""
        self._bells += 1
        value = ((monotonic_ns() >> 6) * self._size + self._rank + self._bells * 0x9E3779B1) & 0xFFFFFFFF
        self._board.ring(rank, self._board.layout.doorbell, value)

    # ---- receiving -------------------------------------------------------------------------------------------------

    def _receive_in_order(self) -> None:
        """A receive that found nothing keeps what comes meanwhile from later ones that could take it too."""
        waiting: list[RecvWork] = []
        for work in self._receives:
            before = (w for w in waiting if w.tag == work.tag)
            if any(ANY in (w.source, work.source) or w.source == work.source for w in before) or not self._receive(work):
                waiting.append(work)
        self._receives = waiting

    def _receive(self, work: RecvWork) -> bool:
        """Take the oldest message that fits, if there is one."""
        best: tuple[int, int, int, tuple[int, ...]] | None = None
        for source in range(self._size) if work.source == ANY else (work.source,):
            words, view = self._board.words[source], self._board.views[source]
            posted = words[self._board.layout.posted // 4 + self._rank]
            if posted == self._taken[source] & 0xFFFFFFFF:
                continue
            found: tuple[int, int, int, tuple[int, ...]] | None = None
            self._board.futex.fence()
            for at in self._slots(self._rank):
                if words[at // 4] == _FULL:
                    self._board.futex.fence()
                    _, tag, number, time, *rest = _SLOT.unpack_from(view, at)
                    # What is posted while we look waits: an older one may just have come into a slot that we have passed.
                    is_counted = ((posted - number - 1) & 0xFFFFFFFF) < 0x80000000
                    # Of one source the number decides, between sources the time.
                    if is_counted and tag == work.tag and (found is None or number < found[3][0]):
                        found = (time, source, at, (number, *rest))
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        if best is None:
            return False
        _, source, at, (_, num_bytes, fd, offset) = best
        if num_bytes != work.buf.nbytes:
            work.error = CommError(
                f"{work.watch.call} got a message of {num_bytes} bytes from rank {source}, but its buffer has "
                f"{work.buf.nbytes}; send and receive the same number of elements"
            )
        else:
            if fd < 0:
                data = self._board.row(source)[at + _INLINE_AT : at + _INLINE_AT + num_bytes]
            else:
                data = self._arena.peer(self._board.pids[source], fd).bytes[offset : offset + num_bytes]
            work.buf.copy_(data.view(work.buf.dtype))
            work.envelope = Envelope(source, work.tag)
        self._taken[source] += 1
        self._board.futex.fence()
        self._board.words[source][at // 4] = _FREE
        self._ring(source)
        return True

"""Point-to-point messages through the boxes of the board (see boxes.py).

The sender fills a box as far as there are free slots and holds the rest back. The receiver removes a message when a receive matches
it, and empties full boxes whenever it waits for anything (see arrivals.py). So any order of receiving ends, and small messages
delay their sender only while the receiver is busy with something else.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from itertools import chain
from time import perf_counter
from typing import Any

from torch import Tensor

from unisono.comm.base import ANY, Envelope, Watch
from unisono.comm.driver import T, Work, not_done
from unisono.comm.polling import raise_root_cause
from unisono.comm.shared_memory.arrivals import Arrivals
from unisono.comm.shared_memory.board import MAX_SLEEP_S, Board
from unisono.comm.shared_memory.boxes import INLINE_BYTES, Doorbells, Message, Outbox
from unisono.comm.shared_memory.post_office import PostOffice
from unisono.comm.shared_memory.receipts import Receipt, sign
from unisono.comm.shared_memory.segments import Unreachable
from unisono.errors import CommError


class MessageWork(Work[T]):
    """A message in flight. Any thread that moves the mailbox may finish it."""

    def __init__(self, mailbox: Mailbox, buf: Tensor, tag: int, watch: Watch) -> None:
        self.mailbox = mailbox
        self.buf = buf
        self.tag = tag
        self.watch = watch
        self.finished = False
        self.error: Exception | None = None

    def fail(self, error: Exception) -> None:
        """Finishes the work with an error, which `wait` raises."""
        self.error, self.finished = error, True

    def done(self) -> bool:
        if not self.finished:
            self.mailbox.progress()
        return self.finished

    def wait(self, timeout_s: float | None = None) -> T:
        if not self.finished:
            self.mailbox.wait(self, timeout_s)
        if isinstance(self.error, Unreachable):
            raise_root_cause(self.watch, self.error, "shared memory")
        if self.error is not None:
            raise self.error
        return self.result()

    @abstractmethod
    def result(self) -> T:
        """Returns the result of finished work."""


class SendWork(MessageWork[None]):
    """A message that is being sent."""

    receipt: Receipt | None = None
    """The receipt of a large message, from the filling of the box until the receiver has copied the message."""
    staged: Tensor | None = None
    """The copy of a large message that was not in shared memory."""

    def result(self) -> None:
        return None


class RecvWork(MessageWork[Envelope]):
    """A receive that waits for its message."""

    def __init__(self, mailbox: Mailbox, buf: Tensor, source: int, tag: int, watch: Watch) -> None:
        super().__init__(mailbox, buf, tag, watch)
        self.source = source
        self.envelope: Envelope | None = None

    def result(self) -> Envelope:
        assert self.envelope is not None
        return self.envelope


class Mailbox:
    """The messages of one rank. They make progress in `done` and `wait`, when a message is started, and while the process waits
    in another call of a communicator that shares the post office."""

    def __init__(self, board: Board, office: PostOffice) -> None:
        self._board = board
        self._office = office
        self._bells = Doorbells(board)
        ranks = range(board.size)
        self._outboxes = [Outbox(board, dest) for dest in ranks]
        self._arrivals = Arrivals(board, self._bells)
        self._backlog: list[deque[SendWork]] = [deque() for _ in ranks]
        """Sends that found no free slot, by destination."""
        self._unsigned: list[SendWork] = []
        """Large messages whose receiver has not copied them yet."""
        self._receives: list[RecvWork] = []
        """Receives without a message, in the order of their start."""
        self._is_closed = False
        office.open(self)

    def close(self) -> None:
        """Local: closes the mailbox; messages still in flight fail."""
        self._office.close(self)
        self._is_closed = True
        unfinished: list[MessageWork[Any]] = [*self._receives, *self._unsigned, *chain(*self._backlog)]
        for work in unfinished:
            work.fail(CommError(f"{work.watch.call} was not finished when its communicator {work.watch.comm.name} was closed"))
        self._receives, self._unsigned, self._backlog = [], [], []

    def start_send(self, buf: Tensor, dest: int, tag: int, watch: Watch) -> SendWork:
        """Local, not blocking: starts to send a message and returns its work."""
        work = SendWork(self, buf, tag, watch)
        with self._office.lock:
            self._backlog[dest].append(work)
            self._post_waiting(dest)
        return work

    def start_recv(self, buf: Tensor, source: int, tag: int, watch: Watch) -> RecvWork:
        """Local, not blocking: starts to receive a message and returns its work."""
        work = RecvWork(self, buf, source, tag, watch)
        with self._office.lock:
            self._receives.append(work)
            self._receive_in_order()
        return work

    @property
    def is_open(self) -> bool:
        return bool(self._receives or self._unsigned or any(self._backlog))

    def progress(self) -> None:
        """Local, not blocking: moves the messages of this process."""
        with self._office.lock:
            if not self._is_closed:
                self.move()

    def move(self) -> bool:
        """Local, not blocking, the lock of the office is held: finishes sends that were signed for, posts messages that wait for
        a slot, receives what has arrived, empties full boxes. Returns whether another rank can do more now."""
        num_rung = self._bells.num_rung
        if self._unsigned:
            self._finish_signed()
        for dest, backlog in enumerate(self._backlog):
            if backlog:
                self._post_waiting(dest)
        if self._receives:
            self._receive_in_order()
        self._arrivals.empty_full_boxes()
        return self._bells.num_rung != num_rung

    def wait(self, work: MessageWork[T], timeout_s: float | None) -> None:
        """Blocking until `work` is finished; sleeps on this rank's doorbell."""
        give_up_at = None if timeout_s is None else perf_counter() + timeout_s
        spin_until = perf_counter() + self._board.spin_s
        poll_at, slice_s = spin_until + MAX_SLEEP_S, 0.0
        while True:
            heard = self._bells.value()
            if (now := perf_counter()) < spin_until:
                self.progress()
            else:
                slice_s = self._office.progress(slice_s, self)
            if work.finished:
                return
            if now < spin_until:
                continue
            if give_up_at is not None and now >= give_up_at:
                raise not_done(work.watch.call, timeout_s)
            self._bells.sleep(heard, slice_s if give_up_at is None else min(slice_s, give_up_at - now))
            if self._bells.value() == heard or now >= poll_at:
                work.watch.poll()
                poll_at = now + MAX_SLEEP_S

    # ---- sending ---------------------------------------------------------------------------------------------------

    def _post_waiting(self, dest: int) -> None:
        """Moves messages to a rank from the backlog into free slots, and rings its doorbell."""
        backlog, outbox = self._backlog[dest], self._outboxes[dest]
        if not outbox.has_free_slot:
            return
        while backlog and outbox.has_free_slot:
            work = backlog.popleft()
            if work.buf.nbytes <= INLINE_BYTES:
                outbox.put(work.tag, work.buf)
                work.finished = True
            else:
                self._post_large(work, outbox)
        self._bells.ring(dest)

    def _post_large(self, work: SendWork, outbox: Outbox) -> None:
        """Puts the place of a large message into the next slot, after a copy into shared memory if it is elsewhere."""
        arena = self._office.arena
        place = arena.place(work.buf)
        if place is None:
            try:
                work.staged = arena.empty(work.buf.numel(), work.buf.dtype).copy_(work.buf)
            except OSError as error:  # the sender's error, though another thread may move the mailbox now
                work.fail(CommError(f"{work.watch.call} needs {work.buf.nbytes} bytes of shared memory: {error}; free some memory"))
                return
            place = arena.place(work.staged)
            assert place is not None
        work.receipt = self._office.receipts.get_blank()
        outbox.put_place(work.tag, work.buf.nbytes, place, work.receipt.place)
        self._unsigned.append(work)

    def _finish_signed(self) -> None:
        """Finishes the large sends whose receivers have signed that they copied the message."""
        unsigned = []
        for work in self._unsigned:
            assert work.receipt is not None
            if work.receipt.is_signed:
                self._office.receipts.give_back(work.receipt)
                work.receipt = work.staged = None
                work.finished = True
            else:
                unsigned.append(work)
        self._unsigned = unsigned

    # ---- receiving -------------------------------------------------------------------------------------------------

    def _receive_in_order(self) -> None:
        """Receives messages in the order of the receives: one without a message keeps a later one from receiving its message."""
        waiting: list[RecvWork] = []
        awaited: set[tuple[int, int]] = set()
        awaited_tags: set[int] = set()
        for work in self._receives:
            if work.source == ANY:
                is_behind = work.tag in awaited_tags
            else:
                is_behind = (work.source, work.tag) in awaited or (ANY, work.tag) in awaited
            if is_behind or not self._receive(work):
                waiting.append(work)
                awaited.add((work.source, work.tag))
                awaited_tags.add(work.tag)
        self._receives = waiting

    def _receive(self, work: RecvWork) -> bool:
        """Receives the next message that matches, if there is one."""
        message = self._arrivals.oldest(work.source, work.tag)
        if message is None:
            return False
        self._deliver(message, work)
        self._arrivals.remove(message)
        self._bells.ring(message.source)
        return True

    def _deliver(self, message: Message, work: RecvWork) -> None:
        """Copies a message into the buffer of its receive and signs for it, or fails the receive with the reason."""
        pid, arena, source = self._board.pids[message.source], self._office.arena, message.source
        if message.num_bytes != work.buf.nbytes:
            work.fail(
                CommError(
                    f"{work.watch.call} got a message of {message.num_bytes} bytes from rank {source}, but its buffer has "
                    f"{work.buf.nbytes}; send and receive the same number of elements"
                )
            )
        try:
            if not work.finished:
                data = message.payload
                if data is None:
                    start = message.place.offset
                    data = arena.peer_segment(pid, message.place.fd).bytes[start : start + message.num_bytes]
                work.buf.copy_(data.view(work.buf.dtype))
                work.envelope = Envelope(source, work.tag)
                work.finished = True
            if message.payload is None:
                self._board.futex.fence()
                sign(arena, pid, message.receipt)
        except Unreachable as error:  # its sender is gone, and the control plane will say so
            work.watch.sources = (source,)
            work.fail(error)

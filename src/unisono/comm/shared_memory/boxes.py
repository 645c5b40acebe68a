"""The box between two ranks: a ring of slots in the sender's row, filled by the sender and emptied by the receiver, in order.

A slot is FREE (the sender's) or FULL (the receiver's), so it has one writer at any time and needs no atomic operation. A small
message is in the slot; of a large one the slot holds the place of the message, and of the receipt that the receiver signs.

Every change rings the other rank's doorbell: a word that gets a new value, so that a sleeper cannot miss it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from time import monotonic_ns

from torch import Tensor

from unisono.comm.shared_memory.board import NUM_SLOTS, SLOT_BYTES, Board
from unisono.comm.shared_memory.segments import Place

_FREE, _FULL = 0, 1
_SLOT = struct.Struct("<IIQQqQqQ")  # state, tag, time, bytes, file and offset of the message (-1: in the slot), of its receipt
_INLINE_AT = 64
INLINE_BYTES = SLOT_BYTES - _INLINE_AT
"""Largest message that lies in a slot."""


@dataclass(slots=True)
class Message:
    """A message that has arrived. It is in `payload`, or at `place` of its sender, which keeps it until `receipt` is signed."""

    source: int
    tag: int
    time: int
    num_bytes: int
    payload: Tensor | None
    place: Place
    receipt: Place


def _slot_offsets(board: Board, dest: int) -> list[int]:
    """Returns the offsets in a rank's row of the slots of its box for `dest`."""
    start = board.layout.boxes + dest * NUM_SLOTS * SLOT_BYTES
    return [start + i * SLOT_BYTES for i in range(NUM_SLOTS)]


class Outbox:
    """The box to one destination, at its sender."""

    def __init__(self, board: Board, dest: int) -> None:
        self._board = board
        self._starts = _slot_offsets(board, dest)
        self._next = 0

    @property
    def has_free_slot(self) -> bool:
        """Whether the next slot is free, so that a message can be put into it."""
        return bool(self._board.words[self._board.rank][self._starts[self._next] // 4] == _FREE)

    def put(self, tag: int, buf: Tensor) -> None:
        """Local: copies a small message into the next slot, which must be free."""
        at = self._starts[self._next] + _INLINE_AT
        self._board.row(self._board.rank)[at : at + buf.nbytes].view(buf.dtype).copy_(buf)
        self._fill_slot(tag, buf.nbytes, -1, 0, -1, 0)

    def put_place(self, tag: int, num_bytes: int, place: Place, receipt: Place) -> None:
        """Local: writes the place of a large message into the next slot, which must be free."""
        self._fill_slot(tag, num_bytes, place.fd, place.offset, receipt.fd, receipt.offset)

    def _fill_slot(self, tag: int, num_bytes: int, *places: int) -> None:
        """Writes a message's tag, size and place into the next slot and marks it as full."""
        board, at = self._board, self._starts[self._next]
        _SLOT.pack_into(board.views[board.rank], at, _FREE, tag, monotonic_ns(), num_bytes, *places)
        board.futex.fence()
        board.words[board.rank][at // 4] = _FULL
        self._next = (self._next + 1) % NUM_SLOTS


class Inbox:
    """The box of one source, at its receiver."""

    def __init__(self, board: Board, source: int) -> None:
        self._board = board
        self.source = source
        self._starts = _slot_offsets(board, board.rank)
        self._next = 0
        self._head: Message | None = None

    @property
    def is_full(self) -> bool:
        """Whether the box is full, so that the sender may be waiting for a free slot."""
        return bool(self._board.words[self.source][self._starts[self._next - 1] // 4] == _FULL)

    def head(self) -> Message | None:
        """Local: returns the oldest message, which stays in the box; the payload of a small one is in its slot."""
        if self._head is None:
            board, source, at = self._board, self.source, self._starts[self._next]
            if board.words[source][at // 4] == _FULL:
                board.futex.fence()
                _, tag, time, num_bytes, fd, offset, *receipt = _SLOT.unpack_from(board.views[source], at)
                start = at + _INLINE_AT
                payload = board.row(source)[start : start + num_bytes] if fd < 0 else None
                self._head = Message(source, tag, time, num_bytes, payload, Place(fd, offset), Place(*receipt))
        return self._head

    def remove(self) -> None:
        """Local: gives the slot of the oldest message back to the sender, whose doorbell must be rung."""
        self._head = None
        self._board.futex.fence()
        self._board.words[self.source][self._starts[self._next] // 4] = _FREE
        self._next = (self._next + 1) % NUM_SLOTS


class Doorbells:
    """The doorbells of all ranks: a rank rings those of the others and sleeps on its own."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._at = board.layout.doorbell
        self.num_rung = 0

    def ring(self, rank: int) -> None:
        """Local: rings a rank's doorbell: sets it to a value of our own, new by the clock and different from those of others by
        our rank."""
        board = self._board
        self.num_rung += 1
        value = ((monotonic_ns() >> 6) * board.size + board.rank + self.num_rung * 0x9E3779B1) & 0xFFFFFFFF
        board.ring(rank, self._at, value)

    def value(self) -> int:
        """Local: returns the value of our own doorbell. Read it before a check for messages, to miss none that arrives after it."""
        value: int = self._board.words[self._board.rank][self._at // 4]
        self._board.futex.fence()
        return value

    def sleep(self, heard: int, timeout_s: float) -> None:
        """Blocking until the value of our doorbell is no longer `heard`, or the time is over."""
        self._board.sleep(self._board.rank, self._at, heard, timeout_s)

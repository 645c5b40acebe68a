"""Receipts for large messages: the sender leaves a message in place until the receiver has copied it and signed for it.

A receipt is one byte of the sender's shared memory. It outlives the communicator: a receiver that signs late, after the sender has
closed its communicator, must not write into memory that serves something else by then. So the memory of receipts is never freed,
and a receipt that nobody signed is not used again.
"""

from __future__ import annotations

import torch

from unisono.comm.shared_memory.segments import Arena, Place

PAGE_BYTES = 256
"""Receipts that are made at once."""
_BLANK, _SIGNED = 0, 1


class Receipt:
    """The receipt of one message, at its sender."""

    __slots__ = ("_index", "_page", "place")

    def __init__(self, page: memoryview, index: int, place: Place) -> None:
        self._page = page
        self._index = index
        self.place = place

    @property
    def is_signed(self) -> bool:
        """Whether the receiver has signed the receipt."""
        return bool(self._page[self._index] == _SIGNED)

    def wipe(self) -> None:
        """Makes the receipt blank again."""
        self._page[self._index] = _BLANK


class Receipts:
    """All receipts of one process."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._blank: list[Receipt] = []

    def get_blank(self) -> Receipt:
        """Local: returns a blank receipt."""
        if not self._blank:
            page = self._arena.empty(PAGE_BYTES, torch.uint8).zero_()
            place = self._arena.place(page)
            assert place is not None
            view = page.numpy().data
            self._blank = [Receipt(view, i, Place(place.fd, place.offset + i)) for i in range(PAGE_BYTES)]
        return self._blank.pop()

    def give_back(self, receipt: Receipt) -> None:
        """Local: returns a signed receipt to the pool, to be used again."""
        receipt.wipe()
        self._blank.append(receipt)


def sign(arena: Arena, pid: int, place: Place) -> None:
    """Local: signs the receipt at `place` of process `pid`: the message was copied. Fence before it."""
    arena.peer_segment(pid, place.fd).array[place.offset] = _SIGNED
